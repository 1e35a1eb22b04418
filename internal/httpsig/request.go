package httpsig

import "net/http"

// FromRequest describes a request of net/http without copying its headers. On a
// server the target is RequestURI, the bytes on the request line; on a client it
// is what net/http is going to write there. Scheme follows the URL or the
// connection: behind a proxy that ends TLS set it from configuration, never from
// a header that a client can send.
func FromRequest(r *http.Request) *Message {
	m := &Message{
		Method:    r.Method,
		RawTarget: r.RequestURI,
		Scheme:    "http",
		Authority: r.Host,
		Header:    r.Header,
		Trailer:   r.Trailer,
	}
	if r.TLS != nil {
		m.Scheme = "https"
	}
	if m.RawTarget == "" && r.URL != nil {
		m.fromClient(r)
	}
	return m
}

func (m *Message) fromClient(r *http.Request) {
	m.Scheme = r.URL.Scheme
	m.RawTarget = r.URL.RequestURI()
	if m.Method == "" {
		m.Method = http.MethodGet
	}
	if m.Authority == "" {
		m.Authority = r.URL.Host
	}
	if m.Method == http.MethodConnect && r.URL.Path == "" {
		m.RawTarget = m.Authority
	}
}

// SignRequest signs a client's request that is going to be sent with exactly
// this body (which it does not touch). Call it again for every attempt.
func (s *Signer) SignRequest(r *http.Request, body []byte) error {
	if r.Header == nil {
		r.Header = http.Header{}
	}
	return s.Sign(FromRequest(r), body)
}
