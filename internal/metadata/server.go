package metadata

import (
	"context"
	"crypto"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Config is what a Server needs. Provider and TokenKey are required.
type Config struct {
	Provider Provider

	// TokenKey is the HMAC key of the session tokens, 32 bytes or more. Kept over a restart, so are the tokens.
	TokenKey []byte

	// IdentityKey signs instance identity documents; an RSA key makes what EC2's verifiers expect. nil: no signature.
	IdentityKey crypto.Signer

	// ServiceDomain is served as services/domain. Default "outcrop.internal".
	ServiceDomain string

	// Extra is mounted at ExtraPath, for requests with a token, of any method. It finds the instance by FromContext. nil:
	// nothing there.
	Extra http.Handler

	Limits Limits
	Now    func() time.Time // default time.Now
	Log    *slog.Logger     // default: discards
}

// ExtraPath is where Config.Extra is mounted; it gets the whole path.
const ExtraPath = "/latest/outcrop/"

// maxBody bounds what a guest may send to Extra.
const maxBody = 64 << 10

// Server is the metadata service of a node's guests.
type Server struct {
	config Config
	tokens *tokens
	limits Limits
	now    func() time.Time

	mu      sync.Mutex
	callers map[PortKey]*caller

	requests, issued, missing, invalid, refused, throttled atomic.Int64
}

// New checks the configuration.
func New(c Config) (*Server, error) {
	t, err := newTokens(c.TokenKey)
	if err != nil {
		return nil, err
	}
	if c.Provider == nil {
		return nil, errors.New("metadata: Config.Provider is nil")
	}
	if c.ServiceDomain == "" {
		c.ServiceDomain = "outcrop.internal"
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.TokenKey = nil // only the tokens know it
	return &Server{config: c, tokens: t, limits: c.Limits.withDefaults(), now: c.Now, callers: map[PortKey]*caller{}}, nil
}

// Stats counts since the start. MissingTokens and InvalidTokens tell who would break if only valid ones were let through.
type Stats struct {
	Requests, TokensIssued, MissingTokens, InvalidTokens int64
	RefusedConnections, Throttled                        int64
}

// Stats is a snapshot.
func (s *Server) Stats() Stats {
	return Stats{
		Requests: s.requests.Load(), TokensIssued: s.issued.Load(),
		MissingTokens: s.missing.Load(), InvalidTokens: s.invalid.Load(),
		RefusedConnections: s.refused.Load(), Throttled: s.throttled.Load(),
	}
}

// Serve answers the guests of one subnet until the listener is closed. The listener's connections must be TCP, and their
// source address true.
func (s *Server) Serve(subnetID string, l net.Listener) {
	h := &http.Server{
		Handler:                      http.HandlerFunc(s.handle),
		DisableGeneralOptionsHandler: true,
		ReadHeaderTimeout:            5 * time.Second,
		ReadTimeout:                  10 * time.Second,
		WriteTimeout:                 30 * time.Second,
		IdleTimeout:                  time.Minute,
		MaxHeaderBytes:               8 << 10,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, c)
		},
		ErrorLog: slog.NewLogLogger(s.config.Log.Handler(), slog.LevelDebug),
	}
	err := h.Serve(listener{l, s, subnetID})
	if !errors.Is(err, net.ErrClosed) {
		s.config.Log.Error("the metadata listener ended", "subnet", subnetID, "error", err)
	}
	h.Close()
}

type connKey struct{}
type instanceKey struct{}

// FromContext is the instance that a request to Config.Extra is from.
func FromContext(ctx context.Context) (*Instance, bool) {
	i, ok := ctx.Value(instanceKey{}).(*Instance)
	return i, ok
}

const (
	tokenPath   = "/latest/api/token"
	tokenHeader = "X-Aws-Ec2-Metadata-Token"             // as net/http keeps it
	ttlHeader   = "X-Aws-Ec2-Metadata-Token-Ttl-Seconds" // likewise
)

func (s *Server) handle(w http.ResponseWriter, r *http.Request) {
	s.requests.Add(1)
	c := r.Context().Value(connKey{}).(*conn)
	wait, ok := c.caller.delay(s.limits, s.now())
	if !ok {
		s.throttled.Add(1)
		w.Header().Set("Retry-After", "1")
		refuse(w, http.StatusServiceUnavailable, "too many requests; wait a second and try again")
		return
	}
	if !pause(r.Context(), wait) {
		return
	}
	i, known := s.config.Provider.Instance(c.caller.key)
	switch {
	case !known: // it is one of ours all the same: the agent may not have heard of it yet
		w.Header().Set("Retry-After", "1")
		refuse(w, http.StatusServiceUnavailable, "this instance is not known yet; try again")
	case i.Options.Disabled:
		refuse(w, http.StatusForbidden, "the metadata service of this instance is disabled (httpEndpoint)")
	case r.URL.Path == tokenPath:
		s.token(w, r, c, i)
	case s.config.Extra != nil && strings.HasPrefix(r.URL.Path, ExtraPath):
		if s.authorized(w, r, i) {
			r.Body = http.MaxBytesReader(w, r.Body, maxBody)
			s.config.Extra.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), instanceKey{}, i)))
		}
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		refuse(w, http.StatusMethodNotAllowed, "use GET")
	default:
		if s.authorized(w, r, i) {
			s.read(w, r.URL.Path, c.caller, i)
		}
	}
}

// authorized checks the session token and answers 401 when it does not do.
func (s *Server) authorized(w http.ResponseWriter, r *http.Request, i *Instance) bool {
	values := r.Header[tokenHeader]
	if len(values) == 0 {
		s.missing.Add(1)
		refuse(w, http.StatusUnauthorized, "a session token is needed: PUT "+tokenPath)
		return false
	}
	if len(values) > 1 || !s.tokens.valid(values[0], i.ID, s.now()) {
		s.invalid.Add(1)
		refuse(w, http.StatusUnauthorized, "the session token is not valid or has ended: PUT "+tokenPath+" for a new one")
		return false
	}
	return true
}

// token answers PUT /latest/api/token. A request that came through a proxy is refused: its token would go to whoever
// sits behind it.
func (s *Server) token(w http.ResponseWriter, r *http.Request, c *conn, i *Instance) {
	if r.Method != http.MethodPut {
		w.Header().Set("Allow", "PUT")
		refuse(w, http.StatusMethodNotAllowed, "use PUT")
		return
	}
	if _, forwarded := r.Header["X-Forwarded-For"]; forwarded {
		refuse(w, http.StatusForbidden, "a token is not given through a proxy (X-Forwarded-For)")
		return
	}
	values := r.Header[ttlHeader]
	if len(values) != 1 {
		refuse(w, http.StatusBadRequest, "send one X-aws-ec2-metadata-token-ttl-seconds header, 1 to 21600")
		return
	}
	ttl, ok := parseTTL(values[0])
	if !ok {
		refuse(w, http.StatusBadRequest, "X-aws-ec2-metadata-token-ttl-seconds must be 1 to 21600")
		return
	}
	if err := c.setHopLimit(i.Options.HopLimit); err != nil {
		refuse(w, http.StatusInternalServerError, "the token cannot be sent safely; try again")
		return
	}
	s.issued.Add(1)
	w.Header()[ttlHeader] = []string{strconv.Itoa(ttl)}
	w.Header()["Content-Type"] = plain
	_, _ = io.WriteString(w, s.tokens.issue(i.ID, time.Duration(ttl)*time.Second, s.now()))
}

// setHopLimit makes packets of this connection end after so many hops: 1 is the guest itself and no container behind
// it. It stays for the rest of the connection. Were it lifted for the next request, a caller that is too far could send
// one at once and receive the lost token when TCP sends it again.
func (c *conn) setHopLimit(hops int) error {
	hops = min(max(hops, 1), 64)
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TTL, hops) })
	return errors.Join(err, set)
}

// Header values that are shared by all answers; net/http does not change them.
var (
	plain  = []string{"text/plain"}
	octets = []string{"application/octet-stream"}
)

// read answers from the tree.
func (s *Server) read(w http.ResponseWriter, path string, c *caller, i *Instance) {
	path = strings.TrimPrefix(path, "/")
	if path == "" {
		w.Header()["Content-Type"] = plain
		_, _ = io.WriteString(w, versionList)
		return
	}
	version, rest, _ := strings.Cut(path, "/")
	t := s.tree(c, i)
	text, found := t.text[rest]
	if !found || !isVersion[version] {
		refuse(w, http.StatusNotFound, "not found")
		return
	}
	switch rest {
	case userDataPath:
		w.Header()["Content-Type"] = octets
		w.Header()["Content-Length"] = []string{strconv.Itoa(len(i.UserData))}
		_, _ = w.Write(i.UserData)
		return
	case signaturePath:
		if text = t.signature(); text == "" {
			refuse(w, http.StatusInternalServerError, "the document could not be signed; try again")
			return
		}
	}
	w.Header()["Content-Type"] = plain
	_, _ = io.WriteString(w, text)
}

// tree is the instance's rendered tree, rendered when it is not the one of the caller's last request.
func (s *Server) tree(c *caller, i *Instance) *tree {
	if t := c.tree.Load(); t != nil && t.instance == i {
		return t
	}
	t := render(i, s.config.IdentityKey, s.config.ServiceDomain)
	c.tree.Store(t)
	return t
}

func refuse(w http.ResponseWriter, status int, message string) {
	w.Header()["Content-Type"] = plain
	w.WriteHeader(status)
	_, _ = io.WriteString(w, message+"\n")
}
