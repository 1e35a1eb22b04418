package server_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/outcrop-cloud/outcrop/internal/api"
	"github.com/outcrop-cloud/outcrop/internal/apptest"
	"github.com/outcrop-cloud/outcrop/internal/compute"
	"github.com/outcrop-cloud/outcrop/internal/store"
)

func hashOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(n)})
	_, _ = r.Read(b)
	return b
}

// refs are the reference counts as stored, after holding them against the
// instances that name each blob.
func refs(t interface {
	Helper()
	Fatalf(string, ...any)
}, s *apptest.System) map[string]int64 {
	t.Helper()
	var counts, uses map[string]int64
	err := s.DB.Read(context.Background(), func(tx *store.Tx) (err error) {
		if counts, err = tx.BlobRefs(); err == nil {
			uses, err = tx.BlobUses()
		}
		return err
	})
	if err != nil {
		t.Fatalf("%v", err)
	}
	if fmt.Sprint(counts) != fmt.Sprint(uses) {
		t.Fatalf("reference counts are %v, the references %v", counts, uses)
	}
	return counts
}

// Sizes at both sides of each edge, whatever bytes and Content-Type; what is
// refused changes nothing.
// contract: U-01 U-04 U-05 // lesson 23
func TestUserDataBytes(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		n := s.Node("n1")
		member := s.Member("alpha")
		i := n.Stopped("alpha", api.CreateInstance{})
		if i.UserDataHash != "" {
			t.Fatalf("an instance without user-data has the hash %q", i.UserDataHash)
		}
		path := api.InstancePath("alpha", i.ID, "user-data")
		last := ""
		for name, c := range map[string]struct {
			body []byte
			kind string
			code string // of the refusal
		}{
			"one byte": {[]byte("x"), "text/plain", ""}, "one NUL": {[]byte{0}, "", ""}, "gzip": {[]byte{0x1f, 0x8b, 8, 0, 0xff}, "application/gzip", ""},
			"not UTF-8": {[]byte("\xff\xfe\r\n\x00é"), "application/json", ""}, "a form": {[]byte("a=b"), "application/x-www-form-urlencoded", ""},
			"odd type": {[]byte("y"), "not/a; type; \"", ""}, "65535": {randomBytes(65535), "", ""}, "65536": {randomBytes(65536), "", ""},
			"empty": {[]byte{}, "", "INVALID_INPUT"}, "65537": {randomBytes(65537), "", "USER_DATA_TOO_LARGE"}, "1 MiB": {randomBytes(1 << 20), "", "USER_DATA_TOO_LARGE"},
		} {
			for _, chunked := range []bool{false, true} {
				var body any = c.body
				if chunked {
					body = io.MultiReader(bytes.NewReader(c.body)) // of a length that nobody knows
				}
				a := member.Do("PUT", path, body, apptest.Header("Content-Type", c.kind))
				if c.code != "" {
					if r := a.Refused(400, c.code); c.code == "USER_DATA_TOO_LARGE" && !strings.Contains(r.Message, "65536") {
						t.Errorf("%s: the limit is not named: %s", name, r.Message)
					}
				} else {
					last = hashOf(c.body)
					var got api.Instance
					a.Want(200).Decode(&got)
					if got.UserDataHash != last || got.ID != i.ID || got.AgentStatus != nil || got.HealthReason != nil {
						t.Errorf("%s: answered %s; want the hash %s and no agentStatus, healthReason", name, a.Body, last)
					}
					blob(t, n, i.ID, c.body)
				}
				if got := member.Instance("alpha", i.ID).UserDataHash; got != last {
					t.Errorf("%s: the hash is %s, want %s", name, got, last)
				}
			}
			want := map[string]int64{}
			if last != "" {
				want[strings.TrimPrefix(last, "sha256:")] = 1 // the old one is gone
			}
			if got := refs(t, s); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s: references %v, want %v", name, got, want)
			}
		}
		var cleared api.Instance
		a := member.Do("DELETE", path, nil).Want(200).Decode(&cleared)
		if cleared.UserDataHash != "" || strings.Contains(string(a.Body), "userDataHash") || len(refs(t, s)) != 0 {
			t.Errorf("cleared: %s", a.Body)
		}
	})
}

// blob holds that the node gets the very bytes at the hash that it is told.
func blob(t *testing.T, n *apptest.Node, id string, want []byte) {
	t.Helper()
	n.Settle()
	d, ok := n.Desired(id)
	if !ok || "sha256:"+d.UserDataHash != hashOf(want) {
		t.Fatalf("the node is told hash %q, want %s", d.UserDataHash, hashOf(want))
	}
	a := n.Do("GET", api.NodePath(n.ID, "blobs", d.UserDataHash), nil).Want(200)
	if !bytes.Equal(a.Body, want) {
		t.Fatalf("the node gets %d other bytes, want %d", len(a.Body), len(want))
	}
}

// A body that breaks off, announced or chunked, changes nothing and stores
// nothing, and is never a shorter body.
// contract: U-01
func TestUserDataBrokenOff(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		n := s.Node("n1")
		member := s.Member("alpha")
		i := n.Stopped("alpha", api.CreateInstance{UserData: text("before")})
		path := api.InstancePath("alpha", i.ID, "user-data")
		head := "PUT " + path + " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + member.Token() + "\r\n"
		for name, request := range map[string]string{
			"announced":   head + "Content-Length: 100\r\n\r\nhalf of it",
			"chunk cut":   head + "Transfer-Encoding: chunked\r\n\r\n10\r\nhalf",
			"no end":      head + "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
			"bad chunk":   head + "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\nzz\r\n\r\n",
			"bad trailer": head + "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n0\r\nnonsense\r\n\r\n",
		} {
			status := sendAndShut(t, s.URL, request)
			if status != 0 && status != 400 {
				t.Errorf("%s: answered %d", name, status)
			}
			if got := member.Instance("alpha", i.ID).UserDataHash; got != hashOf([]byte("before")) {
				t.Errorf("%s: the user-data has changed to %s", name, got)
			}
		}
		if got := refs(t, s); len(got) != 1 {
			t.Errorf("blobs: %v", got)
		}
	})
}

// sendAndShut sends a request as it is, ends the sending side, and returns the
// status that comes back, 0 for none.
func sendAndShut(t *testing.T, url, request string) int {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

func text(s string) *string {
	b := base64.StdEncoding.EncodeToString([]byte(s))
	return &b
}

// Only a stopped instance takes new user-data.
// contract: U-02
func TestUserDataNeedsStopped(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	n := s.Node("n1")
	i := n.Launch("default", api.CreateInstance{UserData: text("first")})
	path := api.InstancePath("default", i.ID, "user-data")
	refused := func(state compute.InstanceState) {
		t.Helper()
		if got := s.Operator.Instance("default", i.ID).State; got != string(state) {
			t.Fatalf("the instance is %s, want %s", got, state)
		}
		s.Operator.Do("PUT", path, "second").Refused(409, "INVALID_STATE")
		s.Operator.Do("DELETE", path, nil).Refused(409, "INVALID_STATE")
		if got := s.Operator.Instance("default", i.ID).UserDataHash; state != compute.StateTerminated && got != hashOf([]byte("first")) {
			t.Errorf("%s: the hash is %q", state, got)
		}
	}
	do := func(verb string) {
		s.Operator.Do("POST", api.InstancePath("default", i.ID, verb), nil).Want(202)
	}
	refused(compute.StateRunning)
	do("reboot")
	refused(compute.StateRebooting)
	n.Drive("default", i.ID, compute.StateRunning)
	do("stop")
	refused(compute.StateStopping)
	n.Drive("default", i.ID, compute.StateStopped)
	do("start")
	refused(compute.StateStarting)
	n.Drive("default", i.ID, compute.StateRunning)
	n.Phase = func(api.DesiredInstance) (compute.Phase, string) { return compute.PhaseCrashed, "panic" }
	n.Act()
	n.Sync(0)
	refused(compute.StateError)
	s.Operator.Do("DELETE", api.InstancePath("default", i.ID), nil).Want(202)
	refused(compute.StateTerminating)
	n.Phase = nil
	n.Drive("default", i.ID, compute.StateTerminated)
	refused(compute.StateTerminated)
	if got := refs(t, s); len(got) != 0 {
		t.Errorf("blobs are left: %v", got)
	}
}

// A start and a replace raced a thousand times: either the replace came first
// and this boot runs all of the new bytes, or it is refused and the boot runs all
// of the old ones. The node is told one hash with the epoch that boots.
// contract: U-02 U-03
func TestUserDataRacesStart(t *testing.T) {
	const lanes, rounds = 20, 50
	s := apptest.Start(t, apptest.Options{})
	n := s.Node("n1")
	image := s.Image("default")
	ids, now := make([]string, lanes), make([]string, lanes)
	for k := range ids {
		ids[k] = s.Create("default", api.CreateInstance{ImageID: image}).ID
		n.Drive("default", ids[k], compute.StateRunning)
	}
	replaced := 0
	for round := range rounds {
		each(lanes, func(k int) {
			s.Operator.Do("POST", api.InstancePath("default", ids[k], "stop"), api.StopInstance{Force: true}).Want(202)
		})
		for _, id := range ids {
			n.Drive("default", id, compute.StateStopped)
		}
		put := make([]int, lanes)
		each(2*lanes, func(k int) {
			id := ids[k/2]
			if k%2 == 0 {
				s.Operator.Do("POST", api.InstancePath("default", id, "start"), nil).Want(202)
				return
			}
			next := fmt.Sprintf("round %d of lane %d", round, k/2)
			put[k/2] = s.Operator.Do("PUT", api.InstancePath("default", id, "user-data"), next).Status
		})
		n.Sync(0) // what the booting epoch is told
		for k, id := range ids {
			switch put[k] {
			case 200:
				now[k] = strings.TrimPrefix(hashOf([]byte(fmt.Sprintf("round %d of lane %d", round, k))), "sha256:")
				replaced++
			case 409:
			default:
				t.Fatalf("the replace was answered %d", put[k])
			}
			d, _ := n.Desired(id)
			if d.UserDataHash != now[k] || d.Goal != "running" {
				t.Fatalf("round %d, lane %d: the replace was answered %d, the node is told %q to be %s; want %q", round, k, put[k], d.UserDataHash, d.Goal, now[k])
			}
			if now[k] != "" {
				n.Do("GET", api.NodePath(n.ID, "blobs", d.UserDataHash), nil).Want(200)
			}
		}
		n.Act()
		for _, id := range ids {
			n.Drive("default", id, compute.StateRunning)
		}
		refs(t, s)
	}
	if replaced == 0 || replaced == lanes*rounds {
		t.Logf("one side won all %d races", lanes*rounds)
	}
}

func each(n int, do func(k int)) {
	var wg sync.WaitGroup
	for k := range n {
		wg.Go(func() { do(k) })
	}
	wg.Wait()
}

// Whatever happens in whatever order, a restart of the server included, every
// blob is counted as often as it is named.
// contract: U-04
func TestUserDataReferences(t *testing.T) {
	apptest.Each(t, func(t *testing.T, s *apptest.System) {
		n := s.Node("n1")
		image := s.Image("default")
		contents := []string{"a", "b", "c"}
		fewerChecks(t, "20")
		rapid.Check(t, func(r *rapid.T) {
			var ids []string
			pick := func() string { return rapid.SampledFrom(ids).Draw(r, "instance") }
			steps := rapid.IntRange(3, 12).Draw(r, "steps")
			for range steps {
				switch rapid.IntRange(0, 9).Draw(r, "step") {
				case 0, 1, 2:
					in := api.CreateInstance{ImageID: image}
					if c := rapid.SampledFrom(append(contents, "")).Draw(r, "content"); c != "" {
						in.UserData = text(c)
					}
					ids = append(ids, s.Create("default", in).ID)
					n.Drive("default", ids[len(ids)-1], compute.StateRunning)
				case 3, 4, 5:
					if len(ids) > 0 {
						id := pick()
						s.Operator.Do("POST", api.InstancePath("default", id, "stop"), nil)
						n.Settle()
						s.Operator.Do("PUT", api.InstancePath("default", id, "user-data"), rapid.SampledFrom(contents).Draw(r, "content"))
					}
				case 6:
					if len(ids) > 0 {
						s.Operator.Do("DELETE", api.InstancePath("default", pick(), "user-data"), nil)
					}
				case 7, 8:
					if len(ids) > 0 {
						s.Operator.Do("DELETE", api.InstancePath("default", pick()), nil)
						n.Settle()
					}
				case 9:
					if rapid.IntRange(0, 9).Draw(r, "restart") == 0 {
						s.Restart()
						n.Beat(apptest.Machine("n1"))
					}
				}
				refs(r, s)
			}
			for _, id := range ids {
				s.Operator.Do("DELETE", api.InstancePath("default", id), nil)
			}
			n.Settle()
			if left := refs(r, s); len(left) != 0 {
				r.Fatalf("blobs are left when nothing names them: %v", left)
			}
		})
	})
}

// fewerChecks is for properties whose one check is long.
func fewerChecks(t *testing.T, n string) {
	f := flag.Lookup("rapid.checks")
	if usual := f.Value.String(); usual == f.DefValue {
		_ = f.Value.Set(n)
		t.Cleanup(func() { _ = f.Value.Set(usual) })
	}
}

// The same bytes again change nothing in storage, and a second instance with
// them shares the blob.
// contract: U-04
func TestSameBytesAreStoredOnce(t *testing.T) {
	s := apptest.Start(t, apptest.Options{})
	n := s.Node("n1")
	image := s.Image("default")
	a := n.Stopped("default", api.CreateInstance{ImageID: image, UserData: text("same")})
	b := n.Stopped("default", api.CreateInstance{ImageID: image, UserData: text("same")})
	hash := strings.TrimPrefix(hashOf([]byte("same")), "sha256:")
	for range 3 {
		s.Operator.Do("PUT", api.InstancePath("default", a.ID, "user-data"), "same").Want(200)
		if got := refs(t, s); got[hash] != 2 || len(got) != 1 {
			t.Errorf("references %v, want 2 to one blob", got)
		}
	}
	s.Operator.Do("DELETE", api.InstancePath("default", a.ID, "user-data"), nil).Want(200)
	s.Operator.Do("DELETE", api.InstancePath("default", a.ID, "user-data"), nil).Want(200) // and again
	if got := refs(t, s); got[hash] != 1 {
		t.Errorf("references %v, want 1", got)
	}
	s.Operator.Do("DELETE", api.InstancePath("default", b.ID), nil).Want(202)
	n.Settle()
	if got := refs(t, s); len(got) != 0 {
		t.Errorf("references %v, want none", got)
	}
}
