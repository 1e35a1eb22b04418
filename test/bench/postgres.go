package main

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// postgres is a PostgreSQL server of this run, with its stock settings: it
// flushes every commit.
type postgres struct {
	*process
	url string
}

func startPostgres(ctx context.Context, dir string) (*postgres, error) {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if len(found) == 0 {
		return nil, errMissing("PostgreSQL is not installed (Debian: apt install postgresql)")
	}
	server := found[len(found)-1]
	data, err := os.MkdirTemp(dir, "pg-")
	if err != nil {
		return nil, err
	}
	who, err := unprivileged(data)
	if err != nil {
		return nil, err
	}
	initdb := exec.CommandContext(ctx, filepath.Join(filepath.Dir(server), "initdb"), "-D", data, "-U", "outcrop", "-A", "trust", "-E", "UTF8", "--no-instructions")
	initdb.Dir, initdb.SysProcAttr = data, &syscall.SysProcAttr{Credential: who}
	if out, err := initdb.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w\n%s", err, out)
	}
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(addr)
	cmd := exec.Command(server, "-D", data, "-p", port, "-k", data, "-c", "listen_addresses=127.0.0.1")
	cmd.Dir, cmd.SysProcAttr = data, &syscall.SysProcAttr{Credential: who}
	p, err := start(ctx, cmd, addr)
	if err != nil {
		return nil, err
	}
	pg := &postgres{p, "postgres://outcrop@" + addr + "/postgres?sslmode=disable"}
	return pg, pg.await(ctx)
}

// await waits until the server has started up.
func (pg *postgres) await(ctx context.Context) error {
	db, err := sql.Open("pgx", pg.url) // the store registers the driver
	if err != nil {
		return err
	}
	defer db.Close()
	for {
		if err = db.PingContext(ctx); err == nil || ctx.Err() != nil {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// unprivileged gives dir to the user postgres where this process is root, as the
// server refuses to run as root.
func unprivileged(dir string) (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, errMissing(err.Error())
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, os.Chown(dir, uid, gid)
}
