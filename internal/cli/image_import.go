package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/outcrop-cloud/outcrop/internal/api"
)

func newImageImport(a *app) *cobra.Command {
	var name string
	var public bool
	var tags []string
	var architecture string
	c := command("import", text{"Upload a disk image",
		`Uploads a qcow2 or raw disk image, - for standard input. The server looks at its
header before it trusts it (no backing files, nothing in disguise), and the hash
that it computes is compared with the one of what was sent. There is no time
limit unless --timeout is given.`,
		"  outcrop image import --name debian debian-12.qcow2\n  xz -dc disk.raw.xz | outcrop image import --name disk - --public"},
		[]string{"create", "upload"}, []string{"FILE|-"}, func(cmd *cobra.Command, args []string) error {
			if err := need(cmd, "name"); err != nil {
				return err
			}
			if !cmd.Flags().Changed("timeout") {
				a.flags.timeout = 0
			}
			query := url.Values{"name": {name}, "tag": tags}
			if architecture != "" {
				query.Set("architecture", architecture)
			}
			if public {
				query.Set("public", "true")
			}
			if _, err := parsePairs("tag", tags); err != nil {
				return err
			}
			return a.importImage(cmd.Context(), args[0], query)
		})
	c.Flags().StringVar(&name, "name", "", "name of the image")
	c.Flags().BoolVar(&public, "public", false, "all projects see it (operators only)")
	c.Flags().StringVar(&architecture, "architecture", "", "amd64 or arm64: its instances go only to such nodes (any when left out)")
	c.Flags().StringArrayVar(&tags, "tag", nil, "tag, key=value (repeatable); stratum.dev/agent-activation=automatic says that the image ships the guest agent")
	return c
}

func (a *app) importImage(ctx context.Context, file string, query url.Values) error {
	path := images.path(a, "") + "?" + query.Encode()
	var it item[image]
	var sum string
	if _, err := a.client(); err != nil {
		return err // later on, the transport owns the file
	}
	err := a.create(ctx, func(ctx context.Context, key api.Option) error {
		up, err := a.newUpload(file)
		if err != nil {
			return err
		}
		it, sum, err = up.send(ctx, path, key)
		if file == "-" && unanswered(err) { // it cannot be read again
			return &failure{code: codeUnreachable, message: err.Error(), // no cause, so that it is not tried again
				hint: "\"outcrop image list\" shows whether the image came through"}
		}
		return err
	})
	if err != nil {
		return err
	}
	if it.value.SHA256 != sum {
		return &failure{code: codeFailed,
			message: fmt.Sprintf("the server stored other bytes (sha256 %s) than were read here (%s)", it.value.SHA256, sum),
			hint:    fmt.Sprintf("delete it (outcrop image delete %s) and import it again", it.value.ID)}
	}
	if a.flags.output != "table" {
		return printOne(a, it, images.details, images.id)
	}
	return printList(a, []item[image]{it}, images.columns, images.id)
}

// upload is a file on its way: it counts and hashes what is read from it.
type upload struct {
	a     *app
	file  io.ReadCloser
	total int64 // -1 where it is not known
	begin time.Time

	closed    chan struct{}
	closeOnce sync.Once

	mu   sync.Mutex // the transport may still read when the answer is there
	over bool       // nothing more is told
	sent int64
	hash hash.Hash
	p    *progress
	told time.Time // when progress was last told
}

func (a *app) newUpload(file string) (*upload, error) {
	r, err := a.open(file)
	if err != nil {
		return nil, err
	}
	now := a.now()
	up := &upload{a: a, file: r, total: -1, hash: sha256.New(), p: newProgress(a), begin: now, told: now, closed: make(chan struct{})}
	if f, ok := r.(*os.File); ok {
		st, err := f.Stat()
		if err == nil && st.IsDir() {
			err = usagef("%s is a directory; give the image's file", file)
		}
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		if st.Mode().IsRegular() {
			up.total = st.Size()
		}
	}
	return up, nil
}

// send uploads the file and gives back the image that it became, and the hex
// sha256 of what was read.
func (up *upload) send(ctx context.Context, path string, key api.Option) (it item[image], sum string, err error) {
	// The server can refuse before the body is sent.
	opts := []api.Option{key, func(r *http.Request) { r.Header.Set("Expect", "100-continue") }}
	if up.total >= 0 {
		opts = append(opts, api.ContentLength(up.total))
	}
	err = up.a.do(ctx, http.MethodPost, path, up, &it, opts...)
	if err == nil {
		<-up.closed // the transport closes what it has read
	}
	up.mu.Lock()
	defer up.mu.Unlock()
	up.over = true
	up.p.clear()
	if err == nil {
		up.p.line("%s sent in %s", formatSize(up.sent), elapsed(up.a.now().Sub(up.begin)))
	}
	return it, hex.EncodeToString(up.hash.Sum(nil)), err
}

func (up *upload) Read(b []byte) (int, error) {
	n, err := up.file.Read(b) // may wait for a pipe: not under the lock
	up.mu.Lock()
	defer up.mu.Unlock()
	if !up.over {
		up.hash.Write(b[:n])
		up.sent += int64(n)
		up.tell()
	}
	return n, err
}

func (up *upload) Close() error {
	var err error
	up.closeOnce.Do(func() {
		err = up.file.Close()
		close(up.closed)
	})
	return err
}

// tell redraws the bar on a terminal, and prints a line now and then elsewhere.
func (up *upload) tell() {
	pause := 10 * time.Second
	if up.p.live {
		pause = frame
	}
	now := up.a.now()
	if now.Sub(up.told) < pause {
		return
	}
	up.told = now
	if up.p.live {
		up.p.draw(up.text(now))
	} else {
		up.p.line("%s", up.text(now))
	}
}

// text says how far it is: [====    ] 45%  450MiB of 1GiB  80MiB/s.
func (up *upload) text(now time.Time) string {
	text := formatSize(up.sent)
	if up.total > 0 {
		text = bar(up.sent, up.total) + "  " + text + " of " + formatSize(up.total)
	}
	if seconds := now.Sub(up.begin).Seconds(); seconds > 0 {
		text += "  " + formatSize(int64(float64(up.sent)/seconds)) + "/s"
	}
	return text
}
