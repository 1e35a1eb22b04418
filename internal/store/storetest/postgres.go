// Package storetest gives tests a fresh database of either kind.
package storetest

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
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/store"
)

// Kinds are the databases that every suite runs on.
var Kinds = []string{"sqlite", "postgres"}

// Each runs fn once per kind of database, with an empty one.
func Each(t *testing.T, fn func(t *testing.T, o store.Options)) {
	for _, kind := range Kinds {
		t.Run(kind, func(t *testing.T) { fn(t, Options(t, kind)) })
	}
}

// Options names an empty database of the kind. PostgreSQL is the one of
// OUTCROP_TEST_POSTGRES (a superuser's URL), else one that this process starts.
func Options(t testing.TB, kind string) store.Options {
	t.Helper()
	if kind == "sqlite" {
		return store.Options{Dir: t.TempDir()}
	}
	return store.Options{URL: Postgres(t)}
}

// Open opens an empty database and closes it with the test.
func Open(t testing.TB, o store.Options) *store.DB {
	t.Helper()
	db, err := store.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

var (
	cluster   = sync.OnceValues(startCluster)
	databases atomic.Int64
)

// Postgres makes an empty PostgreSQL database and returns its URL. Without a
// server to be had the test is skipped, or fails where OUTCROP_REQUIRE_REAL is set.
func Postgres(t testing.TB) string {
	t.Helper()
	admin := os.Getenv("OUTCROP_TEST_POSTGRES")
	if admin == "" {
		var err error
		if admin, err = cluster(); err != nil {
			if os.Getenv("OUTCROP_REQUIRE_REAL") != "" {
				t.Fatalf("PostgreSQL is needed: %v", err)
			}
			t.Skipf("no PostgreSQL to test with (%v); install postgresql or set OUTCROP_TEST_POSTGRES", err)
		}
	}
	name := fmt.Sprintf("outcrop_%d_%d", os.Getpid(), databases.Add(1))
	db, err := sql.Open("pgx", admin)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		db, err := sql.Open("pgx", admin)
		if err == nil {
			_, err = db.ExecContext(context.Background(), "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
			db.Close()
		}
		if err != nil {
			t.Log(err)
		}
	})
	before, query, _ := strings.Cut(admin, "?")
	url := before[:strings.LastIndex(before, "/")+1] + name
	if query != "" {
		url += "?" + query
	}
	return url
}

// startCluster runs a throw-away server that dies with this process.
func startCluster() (string, error) {
	initdb, err := binary("initdb")
	if err != nil {
		return "", err
	}
	server, err := binary("postgres")
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "outcrop-pg-")
	if err != nil {
		return "", err
	}
	cred, err := unprivileged(dir)
	if err != nil {
		return "", err
	}
	data := filepath.Join(dir, "data")
	cmd := exec.Command(initdb, "-D", data, "-U", "outcrop", "-A", "trust", "-E", "UTF8", "--no-sync", "--no-instructions")
	cmd.Dir, cmd.SysProcAttr = dir, &syscall.SysProcAttr{Credential: cred}
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("initdb: %w\n%s", err, out)
	}
	port, err := freePort()
	if err != nil {
		return "", err
	}
	cmd = exec.Command(server, "-D", data, "-p", strconv.Itoa(port), "-k", dir, "-c", "listen_addresses=127.0.0.1", "-c", "max_connections=300",
		"-c", "fsync=off", "-c", "full_page_writes=off") // it is thrown away in any case
	cmd.Dir = dir
	// The kernel ends the server with the thread's process, even after a crash;
	// the folder is left to the next start of the machine then.
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: cred, Pdeathsig: syscall.SIGINT}
	if err := startAndKeep(cmd); err != nil {
		return "", err
	}
	url := fmt.Sprintf("postgres://outcrop@127.0.0.1:%d/postgres?sslmode=disable", port)
	return url, waitReady(url)
}

func binary(name string) (string, error) {
	if p, err := exec.LookPath(name); err == nil && name != "postgres" {
		return p, nil
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if len(found) == 0 {
		return "", fmt.Errorf("%s is not installed", name)
	}
	return found[len(found)-1], nil
}

// unprivileged gives dir to the user postgres where this process is root, as the
// server refuses to run as root.
func unprivileged(dir string) (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, err
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, os.Chown(dir, uid, gid)
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// waitReady waits for a real server process, in real time.
func waitReady(url string) error {
	db, err := sql.Open("pgx", url)
	if err != nil {
		return err
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if err = db.PingContext(ctx); err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("PostgreSQL did not come up: %w", err)
		}
	}
}
