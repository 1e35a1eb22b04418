package httpsig

import (
	"errors"
	"fmt"
	"strconv"
)

// AppendBase appends the signature base of m (RFC 9421 section 2.5): one line
// for each covered component and a last one for the parameters, without a final
// newline. It fails when a component cannot be taken from m or would not be
// plain ASCII on one line.
func (in *Input) AppendBase(dst []byte, m *Message) ([]byte, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	for _, c := range in.Components {
		dst = append(c.append(dst), ": "...)
		start := len(dst)
		var err error
		if dst, err = appendValue(dst, c, m); err == nil {
			err = checkLine(dst[start:])
		}
		if err != nil {
			return nil, fmt.Errorf("component %s: %w", c, err)
		}
		dst = append(dst, '\n')
	}
	return in.append(append(dst, `"@signature-params": `...)), nil
}

// checkLine: the base is ASCII, and one component is one line.
func checkLine(value []byte) error {
	for _, c := range value {
		if c < ' ' && c != '\t' || c >= 0x7f {
			return errors.New("the value has bytes that a signature base cannot hold; cover it with bs")
		}
	}
	return nil
}

func appendValue(dst []byte, c Component, m *Message) ([]byte, error) {
	if c.flags&flagReq != 0 {
		// RFC 9421 section 2.4: only in a response, and about its request.
		if !m.isResponse() || m.Request == nil || m.Request.isResponse() {
			return nil, errors.New("req is for a response whose request is known")
		}
		m = m.Request
	}
	if c.name[0] != '@' {
		return appendField(dst, c, m)
	}
	return appendDerived(dst, c, m)
}

// appendDerived is the value of a derived component (RFC 9421 section 2.2).
func appendDerived(dst []byte, c Component, m *Message) ([]byte, error) {
	if (c.name == "@status") != m.isResponse() {
		return nil, errors.New("@status is for responses, the other derived components are for requests")
	}
	switch c.name {
	case "@status":
		if m.Status < 100 || m.Status > 999 {
			return nil, errors.New("a status has three digits")
		}
		return strconv.AppendInt(dst, int64(m.Status), 10), nil
	case "@method":
		return appendMethod(dst, m.Method)
	}
	t, err := m.target()
	if err != nil {
		return nil, err
	}
	switch c.name {
	case "@target-uri":
		return t.appendURI(dst, m.RawTarget)
	case "@authority":
		return t.appendAuthority(dst)
	case "@scheme":
		return t.appendScheme(dst)
	case "@path":
		return t.appendPath(dst)
	case "@query":
		return t.appendQuery(dst)
	case "@query-param":
		return t.appendParam(dst, c.arg)
	}
	return append(dst, m.RawTarget...), nil // @request-target
}

func appendMethod(dst []byte, method string) ([]byte, error) {
	for i := range len(method) {
		if !isTchar(method[i]) {
			return nil, errors.New("the method is not a token")
		}
	}
	if method == "" {
		return nil, errors.New("the message has no method")
	}
	return append(dst, method...), nil
}
