// Package fleet holds the nouns and rules of the runner gateway: apps, their
// keys, runner hosts and what is said about them, and the queue of work.
//
// Everything here is a function of its arguments: time is passed in, nothing is
// stored and nothing is sent. The Parse functions read what a client wrote and
// name every problem at once, by dotted path (contract E-07).
package fleet

import (
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	"github.com/outcrop-cloud/outcrop/internal/fault"
)

// App is what the gateway calls a factory: the unit that owns keys, hosts and
// work (contract R-25).
type App struct {
	ID        string // UUID
	Name      string
	Update    UpdateSetting
	Hosts     int64 // how many hosts it has
	CreatedAt time.Time
}

// maxName bounds the names that people give to apps, keys and jobs.
const maxName = 255

// ParseApp reads the body of POST and PATCH /v1/apps and returns the name.
func ParseApp(body []byte) (name string, err error) {
	o, p := parse(body)
	name, _ = o.name("name", maxName, required)
	o.noOthers()
	return name, p.err()
}

// NewID makes a random UUID (RFC 9562 version 4), in lower case.
func NewID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails since Go 1.24
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// CanonicalID is id in lower case when it has the form of a UUID, else empty.
func CanonicalID(id string) string {
	if len(id) != 36 {
		return ""
	}
	id = strings.ToLower(id)
	for i, c := range []byte(id) {
		dash := i == 8 || i == 13 || i == 18 || i == 23
		if dash != (c == '-') || !dash && !strings.ContainsRune("0123456789abcdef", rune(c)) {
			return ""
		}
	}
	return id
}

// CodeInvalidBody is the code of every refusal of a body (contract E-07).
const CodeInvalidBody = "invalid_request_body"

func invalidBody(fields []fault.Field) error {
	return &fault.Error{Kind: fault.Invalid, Code: CodeInvalidBody, Fields: fields,
		Message: "the request body is not valid; details names each field and what it must be"}
}
