package metadata

import (
	"bytes"
	"cmp"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
)

// instances is a Provider whose answers a test may change.
type instances struct {
	mu sync.Mutex
	by map[PortKey]*Instance
}

func (p *instances) Instance(k PortKey) (*Instance, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i, ok := p.by[k]
	return i, ok
}

func (p *instances) set(k PortKey, i *Instance) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.by[k] = i
}

var (
	port1 = PortKey{"subnet-a", netip.MustParseAddr("127.0.0.1")}
	port2 = PortKey{"subnet-a", netip.MustParseAddr("127.0.0.2")}

	identityKey = sync.OnceValue(func() *rsa.PrivateKey {
		k, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			panic(err)
		}
		return k
	})
	tokenKey = bytes.Repeat([]byte("k"), 32)
)

func sample() *Instance {
	return &Instance{
		ID: "i-000000001", ProjectID: "p-one", ImageID: "img-aaaaaaaaaa", Type: "m1.large",
		Hostname: "ip-172-31-0-3.internal", Architecture: "amd64", Region: "local", Zone: "local-a",
		LaunchedAt: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC), PlacementGroup: "spread",
		Interfaces: []Interface{
			{ID: "eni-aaaaaaaaaa", MAC: "02:00:00:00:00:01", Address: netip.MustParseAddr("172.31.0.3"), SubnetID: "subnet-a",
				Subnet: netip.MustParsePrefix("172.31.0.0/16"), VPCID: "vpc-a", VPC: netip.MustParsePrefix("172.31.0.0/16")},
			{ID: "eni-bbbbbbbbbb", MAC: "02:00:00:00:00:02", Address: netip.MustParseAddr("10.0.0.3"), SubnetID: "subnet-b"},
		},
		PublicKeys: []PublicKey{{"laptop", "ssh-ed25519 AAAA one"}, {"desk", "ssh-ed25519 BBBB two"}},
		Tags:       map[string]string{"Name": "web", "empty": "", "stratum.dev/agent-activation": "automatic"},
		UserData:   []byte("\x1f\x8b\x00binary\r\n\xff"),
		Options:    Options{Tags: true},
	}
}

type service struct {
	t        testing.TB
	server   *Server
	provider *instances
	addr     string
	now      time.Time
	mu       sync.Mutex
}

func (s *service) clock() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

func (s *service) advance(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = s.now.Add(d)
}

// start serves subnet-a on loopback. The clock stands still unless it is moved.
func start(t testing.TB, change func(*Config)) *service {
	t.Helper()
	s := &service{t: t, provider: &instances{by: map[PortKey]*Instance{port1: sample()}}, now: time.Unix(1_800_000_000, 0)}
	c := Config{Provider: s.provider, TokenKey: tokenKey, IdentityKey: identityKey(), Now: s.clock, Limits: Limits{Burst: 1 << 20}}
	if change != nil {
		change(&c)
	}
	var err error
	if s.server, err = New(c); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = l.Addr().String()
	done := make(chan struct{})
	go func() { defer close(done); s.server.Serve("subnet-a", l) }()
	t.Cleanup(func() { l.Close(); <-done })
	return s
}

// client sends from a source address, one connection pool per client.
func (s *service) client(from string) *http.Client {
	tr := &http.Transport{DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext}
	s.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

type answer struct {
	status int
	body   string
	header http.Header
}

func (s *service) do(method, path string, header ...string) answer {
	return s.doFrom(http.DefaultClient, method, path, header...)
}

func (s *service) doFrom(c *http.Client, method, path string, header ...string) answer {
	s.t.Helper()
	r, err := http.NewRequest(method, "http://"+s.addr+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	resp, err := c.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer{resp.StatusCode, string(b), resp.Header}
}

func (s *service) token(from *http.Client) string {
	s.t.Helper()
	a := s.doFrom(from, "PUT", tokenPath, ttlHeader, "21600")
	if a.status != 200 {
		s.t.Fatalf("token: %d %s", a.status, a.body)
	}
	return a.body
}

// The whole tree, and the 404s.
// contract: U-03 U-18
func TestTree(t *testing.T) {
	s := start(t, nil)
	token := s.token(http.DefaultClient)
	const mac = "meta-data/network/interfaces/macs/02:00:00:00:00:01/"
	for path, want := range map[string]string{
		"":                          "dynamic\nmeta-data\nuser-data",
		"dynamic/":                  "instance-identity/",
		"dynamic":                   "instance-identity/",
		"dynamic/instance-identity": "document\nsignature",
		"meta-data/": "ami-id\nami-launch-index\nhostname\ninstance-action\ninstance-id\ninstance-life-cycle\ninstance-type\n" +
			"local-hostname\nlocal-ipv4\nmac\nnetwork/\nplacement/\npublic-keys/\nsecurity-groups\nservices/\ntags/",
		"meta-data/ami-id":                                     "img-aaaaaaaaaa",
		"meta-data/ami-launch-index":                           "0",
		"meta-data/hostname":                                   "ip-172-31-0-3.internal",
		"meta-data/local-hostname":                             "ip-172-31-0-3.internal",
		"meta-data/instance-id":                                "i-000000001",
		"meta-data/instance-type":                              "m1.large",
		"meta-data/instance-action":                            "none",
		"meta-data/instance-life-cycle":                        "on-demand",
		"meta-data/local-ipv4":                                 "172.31.0.3",
		"meta-data/mac":                                        "02:00:00:00:00:01",
		"meta-data/security-groups":                            "default",
		"meta-data/placement/":                                 "availability-zone\ngroup-name\nregion",
		"meta-data/placement/availability-zone":                "local-a",
		"meta-data/placement/region":                           "local",
		"meta-data/placement/group-name":                       "spread",
		"meta-data/public-keys/":                               "0=laptop\n1=desk",
		"meta-data/public-keys/0":                              "openssh-key",
		"meta-data/public-keys/0/":                             "openssh-key",
		"meta-data/public-keys/0/openssh-key":                  "ssh-ed25519 AAAA one",
		"meta-data/public-keys/1/openssh-key":                  "ssh-ed25519 BBBB two",
		"meta-data/services/":                                  "domain\npartition",
		"meta-data/services/domain":                            "outcrop.internal",
		"meta-data/services/partition":                         "outcrop",
		"meta-data/tags/":                                      "instance/",
		"meta-data/tags/instance":                              "Name\nempty\nstratum.dev/agent-activation",
		"meta-data/tags/instance/Name":                         "web",
		"meta-data/tags/instance/empty":                        "",
		"meta-data/tags/instance/stratum.dev/agent-activation": "automatic",
		"meta-data/network/interfaces/macs/":                   "02:00:00:00:00:01/\n02:00:00:00:00:02/",
		mac + "device-number":                                  "0",
		mac + "interface-id":                                   "eni-aaaaaaaaaa",
		mac + "local-hostname":                                 "ip-172-31-0-3.internal",
		mac + "local-ipv4s":                                    "172.31.0.3",
		mac + "mac":                                            "02:00:00:00:00:01",
		mac + "owner-id":                                       "p-one",
		mac + "security-groups":                                "default",
		mac + "subnet-id":                                      "subnet-a",
		mac + "subnet-ipv4-cidr-block":                         "172.31.0.0/16",
		mac + "vpc-id":                                         "vpc-a",
		mac + "vpc-ipv4-cidr-block":                            "172.31.0.0/16",
		mac + "vpc-ipv4-cidr-blocks":                           "172.31.0.0/16",
		"meta-data/network/interfaces/macs/02:00:00:00:00:02/device-number": "1",
		"user-data": "\x1f\x8b\x00binary\r\n\xff",
	} {
		for _, version := range []string{"latest", "2021-03-23", "1.0"} {
			a := s.do("GET", "/"+version+"/"+path, tokenHeader, token)
			if a.status != 200 || a.body != want {
				t.Errorf("%s/%s: %d %q, want %q", version, path, a.status, a.body, want)
			}
			kind := "text/plain"
			if path == "user-data" {
				kind = "application/octet-stream"
			}
			if got := a.header.Get("Content-Type"); got != kind {
				t.Errorf("%s: Content-Type %q", path, got)
			}
		}
	}
	for _, path := range []string{
		"/latest/meta-data/instance-id/", "/latest/meta-data//instance-id", "/latest/./user-data", "/latest/meta-data/nope",
		"/2000-01-01/meta-data/", "/nope", "//", "/latest/meta-data/public-ipv4", "/latest/meta-data/public-hostname",
		"/latest/meta-data/public-keys/2/openssh-key", "/latest/user-data/", "/latest/meta-data/../user-data", "/favicon.ico",
		"/latest/api/", "/2021-03-23/api/token", "/latest/outcrop/agent/heartbeat",
	} {
		if a := s.do("GET", path, tokenHeader, token); a.status != 404 {
			t.Errorf("%s: %d %q, want 404", path, a.status, a.body)
		}
	}
	if a := s.do("GET", "/", tokenHeader, token); !strings.HasPrefix(a.body, "1.0\n2007-01-19\n") || !strings.HasSuffix(a.body, "\nlatest") {
		t.Errorf("versions: %q", a.body)
	}
	if a := s.do("HEAD", "/latest/user-data", tokenHeader, token); a.status != 200 || a.body != "" || a.header.Get("Content-Length") != "12" {
		t.Errorf("HEAD: %+v", a)
	}
	for _, method := range []string{"POST", "PUT", "DELETE", "OPTIONS", "PATCH"} {
		if a := s.do(method, "/latest/meta-data/", tokenHeader, token); a.status != 405 || a.header.Get("Allow") != "GET, HEAD" {
			t.Errorf("%s: %+v", method, a)
		}
	}
}

// What is not there is neither listed nor found, and a change is seen at the next request.
// contract: U-03 U-18
func TestAbsentAndChanged(t *testing.T) {
	s := start(t, nil)
	i := sample()
	i.UserData, i.Options.Tags, i.PublicKeys = nil, false, nil
	s.provider.set(port1, i)
	token := s.token(http.DefaultClient)
	for _, path := range []string{"user-data", "meta-data/tags/", "meta-data/tags/instance/Name", "meta-data/public-keys/"} {
		if a := s.do("GET", "/latest/"+path, tokenHeader, token); a.status != 404 {
			t.Errorf("%s: %d %q", path, a.status, a.body)
		}
	}
	if a := s.do("GET", "/latest/", tokenHeader, token); a.body != "dynamic\nmeta-data" {
		t.Errorf("listing: %q", a.body)
	}
	changed := *i
	changed.PublicIPv4, changed.PublicHostname, changed.UserData = netip.MustParseAddr("203.0.113.9"), "i-000000001.compute.example", []byte{}
	s.provider.set(port1, &changed)
	for path, want := range map[string]string{
		"meta-data/public-ipv4":     "203.0.113.9",
		"meta-data/public-hostname": "i-000000001.compute.example",
		"meta-data/network/interfaces/macs/02:00:00:00:00:01/public-ipv4s": "203.0.113.9",
		"user-data": "",
	} {
		if a := s.do("GET", "/latest/"+path, tokenHeader, token); a.status != 200 || a.body != want {
			t.Errorf("%s: %d %q", path, a.status, a.body)
		}
	}
}

// lesson 27
func TestTokenRules(t *testing.T) {
	s := start(t, nil)
	for _, c := range []struct {
		name, method string
		header       []string
		status       int
	}{
		{"shortest", "PUT", []string{ttlHeader, "1"}, 200},
		{"longest", "PUT", []string{ttlHeader, "21600"}, 200},
		{"too long", "PUT", []string{ttlHeader, "21601"}, 400},
		{"zero", "PUT", []string{ttlHeader, "0"}, 400},
		{"negative", "PUT", []string{ttlHeader, "-1"}, 400},
		{"signed", "PUT", []string{ttlHeader, "+1"}, 400},
		{"no number", "PUT", []string{ttlHeader, "1h"}, 400},
		{"empty", "PUT", []string{ttlHeader, ""}, 400},
		{"huge", "PUT", []string{ttlHeader, strings.Repeat("1", 400)}, 400},
		{"twice", "PUT", []string{ttlHeader, "1", ttlHeader, "2"}, 400},
		{"absent", "PUT", nil, 400},
		{"by GET", "GET", []string{ttlHeader, "60"}, 405},
		{"by POST", "POST", []string{ttlHeader, "60"}, 405},
		{"through a proxy", "PUT", []string{ttlHeader, "60", "X-Forwarded-For", "10.0.0.1"}, 403},
		{"through a nameless proxy", "PUT", []string{ttlHeader, "60", "X-Forwarded-For", ""}, 403},
	} {
		a := s.do(c.method, tokenPath, c.header...)
		if a.status != c.status {
			t.Errorf("%s: %d %q, want %d", c.name, a.status, a.body, c.status)
		}
		if got := a.header.Get(ttlHeader); a.status == 200 && got != c.header[1] {
			t.Errorf("%s: the TTL is echoed as %q", c.name, got)
		}
		if got := a.header.Get("Content-Type"); got != "text/plain" {
			t.Errorf("%s: Content-Type %q", c.name, got)
		}
	}
	for _, name := range []string{"x-forwarded-for", "X-FORWARDED-FOR", "x-Forwarded-fOr"} {
		if got := rawRequest(t, s.addr, "PUT "+tokenPath+" HTTP/1.1\r\nHost: x\r\nx-aws-ec2-metadata-token-ttl-seconds: 60\r\n"+name+": 1.2.3.4\r\nConnection: close\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 403 ") {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func rawRequest(t *testing.T, addr, text string) string {
	t.Helper()
	c, err := net.Dial("tcp4", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(c)
	return string(b)
}

// A token is one instance's, ends to the second, and outlives the agent.
// lesson 27
// lesson 28
func TestTokenBinding(t *testing.T) {
	s := start(t, nil)
	other := sample()
	other.ID = "i-000000002"
	s.provider.set(port2, other)
	one, two := s.client("127.0.0.1"), s.client("127.0.0.2")
	token := s.token(one)
	get := func(c *http.Client, header ...string) answer {
		return s.doFrom(c, "GET", "/latest/meta-data/instance-id", header...)
	}
	if a := get(one, tokenHeader, token); a.status != 200 || a.body != "i-000000001" {
		t.Errorf("own token: %+v", a)
	}
	if a := get(two, tokenHeader, token); a.status != 401 {
		t.Errorf("another's token: %+v", a)
	}
	// The caller is who it is, whatever it says.
	if a := get(two, tokenHeader, s.token(two), "X-Forwarded-For", "127.0.0.1", "X-Real-Ip", "127.0.0.1", "X-Instance-ID", "i-000000001"); a.body != "i-000000002" {
		t.Errorf("with headers: %+v", a)
	}
	for name, header := range map[string][]string{
		"none": nil, "empty": {tokenHeader, ""}, "junk": {tokenHeader, "junk"}, "two": {tokenHeader, token, tokenHeader, token},
		"changed": {tokenHeader, "A" + token[1:]}, "longer": {tokenHeader, token + "A"}, "padded": {tokenHeader, token + "="},
	} {
		if a := get(one, header...); a.status != 401 && token[0] != 'A' {
			t.Errorf("%s: %+v", name, a)
		}
	}
	restarted := start(t, nil)
	if a := restarted.do("GET", "/latest/meta-data/instance-id", tokenHeader, token); a.status != 200 {
		t.Errorf("after a restart: %+v", a)
	}
	s.advance(21600*time.Second - 1)
	if a := get(one, tokenHeader, token); a.status != 200 {
		t.Errorf("in its last moment: %+v", a)
	}
	s.advance(1)
	if a := get(one, tokenHeader, token); a.status != 401 {
		t.Errorf("at its end: %+v", a)
	}
	if st := s.server.Stats(); st.MissingTokens != 1 || st.TokensIssued != 2 || st.InvalidTokens < 7 {
		t.Errorf("stats: %+v", st)
	}
}

// contract: U-18
func TestDisabled(t *testing.T) {
	s := start(t, func(c *Config) {
		c.Extra = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { t.Error("reached") })
	})
	token := s.token(http.DefaultClient)
	off := sample()
	off.Options.Disabled = true
	s.provider.set(port1, off)
	for _, path := range []string{"/", "/latest/", "/latest/user-data", "/latest/meta-data/nope", "/latest/outcrop/agent/heartbeat"} {
		if a := s.do("GET", path, tokenHeader, token); a.status != 403 {
			t.Errorf("%s: %+v", path, a)
		}
	}
	if a := s.do("PUT", tokenPath, ttlHeader, "60"); a.status != 403 {
		t.Errorf("token: %+v", a)
	}
	s.provider.set(port1, sample())
	if a := s.do("GET", "/latest/meta-data/instance-id", tokenHeader, token); a.status != 200 {
		t.Errorf("on again: %+v", a)
	}
}

func TestUnknownCaller(t *testing.T) {
	s := start(t, nil)
	if a := s.doFrom(s.client("127.0.0.9"), "PUT", tokenPath, ttlHeader, "60"); a.status != 503 || a.header.Get("Retry-After") == "" {
		t.Errorf("%+v", a)
	}
}

func TestExtra(t *testing.T) {
	s := start(t, func(c *Config) {
		c.Extra = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			i, _ := FromContext(r.Context())
			b, err := io.ReadAll(r.Body)
			if err != nil {
				w.WriteHeader(http.StatusRequestEntityTooLarge)
				return
			}
			io.WriteString(w, r.Method+" "+r.URL.Path+" "+i.ID+" "+string(b))
		})
	})
	if a := s.do("PUT", "/latest/outcrop/agent/heartbeat"); a.status != 401 {
		t.Errorf("without a token: %+v", a)
	}
	token := s.token(http.DefaultClient)
	send := func(body string) *http.Response {
		r, _ := http.NewRequest("PUT", "http://"+s.addr+"/latest/outcrop/agent/heartbeat", strings.NewReader(body))
		r.Header.Set(tokenHeader, token)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	resp := send("beat")
	b, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if string(b) != "PUT /latest/outcrop/agent/heartbeat i-000000001 beat" {
		t.Errorf("%q", b)
	}
	resp = send(strings.Repeat("x", maxBody+1))
	resp.Body.Close()
	if resp.StatusCode != 413 {
		t.Errorf("a body that is too long: %d", resp.StatusCode)
	}
}

// What guests really use.
// lesson 27
func TestAWSClient(t *testing.T) {
	s := start(t, nil)
	c := imds.New(imds.Options{Endpoint: "http://" + s.addr})
	ctx := context.Background()
	read := func(r io.ReadCloser, err error) string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	meta, err := c.GetMetadata(ctx, &imds.GetMetadataInput{Path: "instance-id"})
	if err != nil {
		t.Fatal(err)
	}
	if got := read(meta.Content, nil); got != "i-000000001" {
		t.Errorf("instance-id: %q", got)
	}
	data, err := c.GetUserData(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := read(data.Content, nil); got != string(sample().UserData) {
		t.Errorf("user-data: %q", got)
	}
	region, err := c.GetRegion(ctx, nil)
	if err != nil || region.Region != "local" {
		t.Errorf("region: %v, %v", region, err)
	}
	doc, err := c.GetInstanceIdentityDocument(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	d := doc.InstanceIdentityDocument
	if d.InstanceID != "i-000000001" || d.Architecture != "x86_64" || d.PrivateIP != "172.31.0.3" || d.AccountID != "p-one" ||
		!d.PendingTime.Equal(sample().LaunchedAt) || d.AvailabilityZone != "local-a" {
		t.Errorf("document: %+v", d)
	}
	raw, err := c.GetDynamicData(ctx, &imds.GetDynamicDataInput{Path: "instance-identity/document"})
	if err != nil {
		t.Fatal(err)
	}
	document := read(raw.Content, nil)
	signed, err := c.GetDynamicData(ctx, &imds.GetDynamicDataInput{Path: "instance-identity/signature"})
	if err != nil {
		t.Fatal(err)
	}
	sig, err := base64.StdEncoding.DecodeString(read(signed.Content, nil))
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(document))
	if err := rsa.VerifyPKCS1v15(&identityKey().PublicKey, crypto.SHA256, sum[:], sig); err != nil {
		t.Errorf("signature: %v", err)
	}
	if st := s.server.Stats(); st.TokensIssued != 1 {
		t.Errorf("the client fetched %d tokens", st.TokensIssued)
	}
}

func TestNewRefuses(t *testing.T) {
	if _, err := New(Config{Provider: &instances{}, TokenKey: make([]byte, 31)}); err == nil {
		t.Error("a short key is taken")
	}
	if _, err := New(Config{TokenKey: tokenKey}); err == nil {
		t.Error("no provider is taken")
	}
}

// cloud-init on EC2 takes the id of the identity document where the listing leads it there, else meta-data/instance-id
// (DataSourceEc2.get_instance_id). A rerun gives it a new one by both, and takes nothing from who asks for the document.
// lesson 26
func TestRerunID(t *testing.T) {
	s := start(t, nil)
	token := s.token(http.DefaultClient)
	get := func(path string) string {
		t.Helper()
		a := s.do("GET", "/2021-03-23/"+path, tokenHeader, token)
		if a.status != 200 {
			t.Errorf("%s: %d %q", path, a.status, a.body)
		}
		return a.body
	}
	crawled := func() string { // as cloud-init does
		t.Helper()
		var document struct{ InstanceID string }
		for name := range strings.SplitSeq(get("dynamic/instance-identity"), "\n") {
			if name == "document" {
				if err := json.Unmarshal([]byte(get("dynamic/instance-identity/document")), &document); err != nil {
					t.Fatal(err)
				}
			}
		}
		return cmp.Or(document.InstanceID, get("meta-data/instance-id"))
	}
	if id := crawled(); id != "i-000000001" {
		t.Errorf("before: %s", id)
	}
	document, signature := get("dynamic/instance-identity/document"), get("dynamic/instance-identity/signature")
	again := sample()
	again.RerunID = "i-000000002"
	s.provider.set(port1, again)
	if id := crawled(); id != again.RerunID {
		t.Errorf("after a rerun cloud-init finds %s, want %s", id, again.RerunID)
	}
	if get("dynamic/instance-identity/document") != document || get("dynamic/instance-identity/signature") != signature {
		t.Error("the identity document is another one")
	}
	if got := get("dynamic/instance-identity/"); got != "signature" {
		t.Errorf("listing: %q", got)
	}
}
