package httpsig

// Message is what a signature can cover of one HTTP message. A request has a
// Method and no Status; a response has a Status and, for components with the
// req parameter, the Request that it answers.
type Message struct {
	// Method as received; methods are case-sensitive (RFC 9110 section 9.1).
	Method string
	// RawTarget is the request target exactly as on the request line: origin
	// form ("/a?b"), absolute form ("https://host/a?b"), "*" or, for CONNECT,
	// "host:port". In HTTP/2 and 3 it is the :path pseudo-header.
	RawTarget string
	// Scheme is "http" or "https". Behind a proxy only configuration knows it.
	Scheme string
	// Authority is the Host header or :authority as received. An absolute-form
	// target overrides it (RFC 9112 section 3.2.2).
	Authority string
	// Header and Trailer map a field's canonical name ("Content-Type", as
	// net/textproto makes it) to its lines in the order received.
	Header, Trailer map[string][]string
	// Status is a response's status code, 100 to 999; zero means a request.
	Status int
	// Request is the request that a response answers.
	Request *Message
	// Fields adds to, or overrides, the structured types known to this package
	// (lower-case name → type). Only the sf parameter needs them.
	Fields map[string]FieldType
}

// FieldType is the top-level type of a structured field (RFC 9651 section 3).
type FieldType uint8

// The three types that a structured field can have.
const (
	ItemField FieldType = iota + 1
	ListField
	DictionaryField
)

// structuredFields are the registered structured fields that a signature is
// likely to cover with sf.
var structuredFields = map[string]FieldType{
	"accept-signature":    DictionaryField,
	"cache-status":        ListField,
	"cdn-cache-control":   DictionaryField,
	"client-cert":         ItemField,
	"client-cert-chain":   ListField,
	"content-digest":      DictionaryField,
	"priority":            DictionaryField,
	"proxy-status":        ListField,
	"repr-digest":         DictionaryField,
	"signature":           DictionaryField,
	"signature-input":     DictionaryField,
	"want-content-digest": DictionaryField,
	"want-repr-digest":    DictionaryField,
}

func (m *Message) isResponse() bool { return m.Status != 0 }

func (m *Message) fieldType(name string) FieldType {
	if t, ok := m.Fields[name]; ok {
		return t
	}
	return structuredFields[name]
}
