package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/api"
)

// launchLab is a server and a node that launch the same instance again and again,
// and the same domain by hand.
type launchLab struct {
	Dir    string // for everything
	Binary string // outcrop
	Image  string // a micro image
	URI    string // of libvirtd
	Rounds int
	Agent  bool // the image has the guest agent; its first heartbeat is measured

	client  *api.Client
	imageID string
	server  string // its address
	node    *process
}

func measureLaunches(ctx context.Context, lab string) error {
	var l launchLab
	if err := json.Unmarshal([]byte(lab), &l); err != nil {
		return err
	}
	r, err := l.run(ctx)
	if err != nil {
		return fmt.Errorf("%w\nthe node's log ends with:\n%s", err, tail(l.nodeLog()))
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

// run starts server and node, and measures.
func (l *launchLab) run(ctx context.Context) (r result, err error) {
	e := &env{binary: l.Binary}
	data := filepath.Join(l.Dir, "server")
	server, err := e.startServer(ctx, data, "")
	if err != nil {
		return r, err
	}
	defer server.stop()
	l.server = server.addr
	var token []byte
	if err := until(ctx, time.Minute, "the operator's token", func() (bool, error) { // the port is open before
		var err error
		token, err = os.ReadFile(filepath.Join(data, "operator.token"))
		return err == nil, nil
	}); err != nil {
		return r, err
	}
	if l.client, err = api.NewClient("http://"+server.addr, string(token), "bench"); err != nil {
		return r, err
	}
	if err := l.importImage(ctx, server.addr, strings.TrimSpace(string(token))); err != nil {
		return r, err
	}
	defer l.removeRouters()
	defer func() {
		if l.node != nil {
			l.node.stop()
		}
	}()
	if err := l.startNode(ctx); err != nil {
		return r, err
	}
	if l.Agent {
		return l.measureAgent(ctx)
	}
	return l.measure(ctx)
}

func (l *launchLab) measure(ctx context.Context) (r result, err error) {
	// The first launch waits for the probe of the hypervisor, which began with the
	// agent, and fetches the image; the first of the next agent has both.
	first, _, err := l.byOutcrop(ctx)
	if err != nil {
		return r, err
	}
	l.node.stop()
	if err := l.startNode(ctx); err != nil {
		return r, err
	}
	again, _, err := l.byOutcrop(ctx)
	if err != nil {
		return r, err
	}
	var ours, theirs, ratios []float64
	for range l.Rounds {
		a, xml, err := l.byOutcrop(ctx)
		if err != nil {
			return r, err
		}
		b, err := l.byHand(ctx, xml)
		if err != nil {
			return r, err
		}
		ours, theirs, ratios = append(ours, a.Seconds()), append(theirs, b.Seconds()), append(ratios, a.Seconds()/b.Seconds())
	}
	return result{
		Name: "launch", Value: median(ours), Unit: "s", Reference: median(theirs), Ratio: median(ratios), Better: lower, Goal: "<= 1.3",
		Against: "virsh start of the same domain with an overlay made before", Rounds: l.Rounds,
		More: map[string]float64{"firstOfFirstAgentSeconds": first.Seconds(), "firstOfNextAgentSeconds": again.Seconds()},
	}, nil
}

func tail(b []byte) []byte { return b[max(0, len(b)-2000):] }

func (l *launchLab) importImage(ctx context.Context, addr, token string) error {
	f, err := os.Open(l.Image)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	tag := ""
	if l.Agent {
		tag = "&tag=" + url.QueryEscape("stratum.dev/agent-activation=automatic")
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/v1/projects/default/compute/images?name=micro"+tag, f)
	if err != nil {
		return err
	}
	r.ContentLength = info.Size()
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/octet-stream")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusCreated {
		return fmt.Errorf("importing the image: %s", answer.Status)
	}
	var image api.Image
	err = json.NewDecoder(answer.Body).Decode(&image)
	l.imageID = image.ID
	return err
}

func (l *launchLab) startNode(ctx context.Context) error {
	var token api.NewToken
	if err := l.client.Do(ctx, http.MethodPost, "/v1/tokens", api.CreateToken{Role: "node", NodeID: "bench"}, &token); err != nil {
		return err
	}
	file := filepath.Join(l.Dir, "node.token")
	if err := os.WriteFile(file, []byte(token.Secret), 0o600); err != nil {
		return err
	}
	cmd := exec.Command(l.Binary, "node", "--server", "http://"+l.server, "--token-file", file, "--id", "bench", "--data", filepath.Join(l.Dir, "node"), "--libvirt", l.URI)
	log, err := os.OpenFile(filepath.Join(l.Dir, nodeLog), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }()
	l.node = &process{cmd: cmd}
	return until(ctx, time.Minute, "the node's first heartbeat", func() (bool, error) {
		err := l.client.Do(ctx, http.MethodGet, "/v1/compute/nodes/bench", nil, nil)
		return err == nil, nil
	})
}

// nodeLog is the file of the node agent's log.
const nodeLog = "node.log"

func (l *launchLab) nodeLog() []byte {
	b, _ := os.ReadFile(filepath.Join(l.Dir, nodeLog))
	return b
}

// removeRouters removes what a node leaves until the next boot: the folder of its
// routers, which is empty by now.
func (l *launchLab) removeRouters() {
	sum := sha256.Sum256([]byte(filepath.Join(l.Dir, "node")))
	dir := filepath.Join("/run/outcrop", hex.EncodeToString(sum[:4]))
	_ = os.Remove(filepath.Join(dir, "routers"))
	_ = os.Remove(dir)
}

// userland is how the micro image's first line begins.
var userland = []byte("outcrop-micro:")

const instances = "/v1/projects/default/compute/instances"

// byOutcrop creates an instance, waits for its userland and terminates it. It
// returns the domain's definition, too.
func (l *launchLab) byOutcrop(ctx context.Context) (took time.Duration, xml string, err error) {
	begun := time.Now()
	var i api.Instance
	in := api.CreateInstance{Name: "bench", ImageID: l.imageID, VCPUs: 1, MemoryBytes: 128 << 20}
	if err := l.client.Do(ctx, http.MethodPost, instances, in, &i); err != nil {
		return 0, "", err
	}
	if err := awaitUserland(ctx, filepath.Join(l.Dir, "node", "instances", i.ID, "console.log")); err != nil {
		_ = l.client.Do(ctx, http.MethodGet, instances+"/"+i.ID, nil, &i)
		return 0, "", fmt.Errorf("%w; the instance is %s %s", err, i.State, i.StateMessage)
	}
	took = time.Since(begun)
	if xml, err = l.virsh(ctx, "dumpxml", "--inactive", "outcrop-"+i.ID); err != nil {
		return 0, "", err
	}
	xml = strings.ReplaceAll(xml, i.ID, placeholder)
	if err := os.MkdirAll(filepath.Join(l.Dir, "hand"), 0o711); err != nil {
		return 0, "", err
	}
	from := filepath.Join(l.Dir, "node", "instances", i.ID)
	for _, name := range []string{"base", "cidata.iso"} { // gone with the instance
		if err := copyFile(filepath.Join(from, name), filepath.Join(l.Dir, "hand", name)); err != nil {
			return 0, "", err
		}
	}
	return took, xml, l.end(ctx, i.ID)
}

// end terminates an instance and waits until nothing is left of it on the node.
func (l *launchLab) end(ctx context.Context, id string) error {
	if err := l.client.Do(ctx, http.MethodDelete, instances+"/"+id, nil, nil); err != nil {
		return err
	}
	return until(ctx, time.Minute, "the end of "+id, func() (bool, error) {
		_, err := os.Stat(filepath.Join(l.Dir, "node", "instances", id))
		return errors.Is(err, fs.ErrNotExist), nil
	})
}

// placeholder is the instance's id in a definition that is kept.
const placeholder = "i-000000000"

var (
	tapName = regexp.MustCompile(`<target dev='(oct[^']+)'`)
	macText = regexp.MustCompile(`<mac address='[^']+'/>`)
	uuid    = regexp.MustCompile(`<uuid>([^<]+)</uuid>`)
)

// byHand starts the domain as a person would who has its definition, with an
// overlay and a tap of its own that were there before.
func (l *launchLab) byHand(ctx context.Context, xml string) (took time.Duration, err error) {
	const name, tap = "outcrop-bench-by-hand", "benchtap0"
	dir := filepath.Join(l.Dir, "hand")
	overlay, console := filepath.Join(dir, "root.qcow2"), filepath.Join(dir, "console.log")
	xml = strings.ReplaceAll(xml, filepath.Join(l.Dir, "node", "instances", placeholder), dir)
	xml = strings.ReplaceAll(xml, "outcrop-"+placeholder, name)
	if m := uuid.FindStringSubmatch(xml); m != nil {
		xml = strings.ReplaceAll(xml, m[1], m[1][:24]+"be1c4be1c4be")
	}
	xml = macText.ReplaceAllString(xml, "<mac address='02:be:1c:40:00:01'/>")
	if tapName.MatchString(xml) {
		xml = tapName.ReplaceAllString(xml, "<target dev='"+tap+"'")
		if _, err := run(ctx, dir, "ip", "tuntap", "add", "dev", tap, "mode", "tap", "user", "libvirt-qemu", "group", "libvirt-qemu"); err != nil {
			return 0, err
		}
		defer run(context.WithoutCancel(ctx), dir, "ip", "link", "delete", tap)
		if _, err := run(ctx, dir, "ip", "link", "set", tap, "up"); err != nil {
			return 0, err
		}
	}
	if _, err := run(ctx, dir, "qemu-img", "create", "-q", "-f", "qcow2", "-b", "base", "-F", "qcow2", overlay, "1G"); err != nil {
		return 0, err
	}
	definition := filepath.Join(dir, "domain.xml")
	if err := os.WriteFile(definition, []byte(xml), 0o600); err != nil {
		return 0, err
	}
	if _, err := l.virsh(ctx, "define", definition); err != nil {
		return 0, err
	}
	defer os.Remove(console)
	defer l.virsh(context.WithoutCancel(ctx), "undefine", name)
	defer l.virsh(context.WithoutCancel(ctx), "destroy", name)
	begun := time.Now()
	if _, err := l.virsh(ctx, "start", name); err != nil {
		return 0, err
	}
	err = awaitUserland(ctx, console)
	return time.Since(begun), err
}

func (l *launchLab) virsh(ctx context.Context, args ...string) (string, error) {
	return run(ctx, l.Dir, "virsh", append([]string{"-q", "-c", l.URI}, args...)...)
}

func awaitUserland(ctx context.Context, console string) error {
	return until(ctx, 2*time.Minute, "the guest's userland", func() (bool, error) {
		b, err := os.ReadFile(console)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
		return bytes.Contains(b, userland), nil
	})
}

// until asks every few milliseconds.
func until(ctx context.Context, limit time.Duration, what string, done func() (bool, error)) error {
	for end := time.Now().Add(limit); ; time.Sleep(5 * time.Millisecond) {
		ok, err := done()
		switch {
		case err != nil:
			return err
		case ok:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(end):
			return fmt.Errorf("%s did not come within %s", what, limit)
		}
	}
}

func copyFile(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o644)
}
