package httpsig

import (
	"fmt"
	"strings"

	"github.com/dunglas/httpsfv"
)

// Component identifies one covered component: a name and its parameters, such
// as "@method", "content-digest" or "@query-param";name="id". Make it with
// [ParseComponents].
type Component struct {
	name   string
	flags  flag
	arg    string // the value of key or name; a component never has both
	params string // serialized, in the order given
}

type flag uint8

const (
	flagSF flag = 1 << iota
	flagKey
	flagBS
	flagTR
	flagReq
	flagName
)

// flagNames are the parameters of RFC 9421 sections 2.1 and 2.2.8.
var flagNames = map[string]flag{
	"sf": flagSF, "key": flagKey, "bs": flagBS, "tr": flagTR, "req": flagReq, "name": flagName,
}

// derivedNames are the derived components of RFC 9421 section 2.2.
var derivedNames = map[string]bool{
	"@method": true, "@target-uri": true, "@authority": true, "@scheme": true, "@request-target": true,
	"@path": true, "@query": true, "@query-param": true, "@status": true,
}

// ParseComponents reads covered components in the notation of Signature-Input:
// ("@method" "content-digest" "example-dict";key="a"). It refuses a component
// that RFC 9421 does not define, parameters that do not fit it, and a component
// that is listed twice.
func ParseComponents(list string) ([]Component, error) {
	dict, err := parseDictionary([]string{"c=" + list})
	if err != nil {
		return nil, err
	}
	member, _ := dict.Get("c")
	inner, ok := member.(httpsfv.InnerList)
	if !ok || len(dict.Names()) != 1 || len(inner.Params.Names()) > 0 {
		return nil, fmt.Errorf(`covered components are written as ("@method" "@path"), not %q`, list)
	}
	return components(inner)
}

// MustComponents is [ParseComponents] for a list written in the program; it
// panics on a bad one.
func MustComponents(list string) []Component {
	cs, err := ParseComponents(list)
	if err != nil {
		panic("httpsig: " + err.Error())
	}
	return cs
}

func components(inner httpsfv.InnerList) ([]Component, error) {
	cs := make([]Component, 0, len(inner.Items))
	for _, item := range inner.Items {
		c, err := component(item)
		if err != nil {
			return nil, err
		}
		cs = append(cs, c)
	}
	return cs, unique(cs)
}

// unique refuses a component listed twice (RFC 9421 section 2).
func unique(cs []Component) error {
	if len(cs) > maxComponents {
		return fmt.Errorf("a signature covers at most %d components", maxComponents)
	}
	for i, c := range cs {
		for _, earlier := range cs[:i] {
			if c.same(earlier) {
				return fmt.Errorf("component %s is covered twice", c)
			}
		}
	}
	return nil
}

func component(item httpsfv.Item) (Component, error) {
	name, ok := item.Value.(string)
	if !ok || !derivedNames[name] && !isFieldName(name) {
		return Component{}, fmt.Errorf("%.80q is not a component of RFC 9421", fmt.Sprint(item.Value))
	}
	c := Component{name: name}
	var params []byte
	for _, p := range item.Params.Names() {
		value, _ := item.Params.Get(p)
		f := flagNames[p]
		switch v := value.(type) {
		case bool:
			if !v || f&(flagSF|flagBS|flagTR|flagReq) == 0 {
				return Component{}, fmt.Errorf("component %q cannot have the parameter %.80q", name, p)
			}
			params = append(append(params, ';'), p...)
		case string:
			if f&(flagKey|flagName) == 0 {
				return Component{}, fmt.Errorf("component %q cannot have the parameter %.80q", name, p)
			}
			c.arg = v
			params = appendString(append(append(append(params, ';'), p...), '='), v)
		default:
			return Component{}, fmt.Errorf("component %q has a parameter of the wrong type", name)
		}
		c.flags |= f
	}
	c.params = string(params)
	return c, c.fits()
}

// fits checks that the parameters go with the component and with one another.
func (c Component) fits() error {
	allowed := flagReq
	switch {
	case c.name == "@status":
		allowed = 0
	case c.name == "@query-param":
		allowed |= flagName
		if c.flags&flagName == 0 {
			return fmt.Errorf(`component "@query-param" needs the parameter name`)
		}
	case c.name[0] != '@':
		allowed |= flagSF | flagKey | flagBS | flagTR
		if c.flags&flagBS != 0 && c.flags&(flagSF|flagKey) != 0 {
			return fmt.Errorf("component %q cannot have bs together with sf or key", c.name)
		}
	}
	if c.flags&^allowed != 0 {
		return fmt.Errorf("component %q cannot have those parameters", c.name)
	}
	return nil
}

// same compares as RFC 9421 section 2 does: the order of parameters does not
// make two components different.
func (c Component) same(d Component) bool {
	return c.name == d.name && c.flags == d.flags && c.arg == d.arg
}

// String is the component identifier as it stands in Signature-Input.
func (c Component) String() string { return string(c.append(nil)) }

func (c Component) append(dst []byte) []byte {
	dst = append(append(append(dst, '"'), c.name...), '"')
	return append(dst, c.params...)
}

// isFieldName: component names of fields are lower case (RFC 9421 section 2.1).
func isFieldName(s string) bool {
	for i := range len(s) {
		if 'A' <= s[i] && s[i] <= 'Z' || !isTchar(s[i]) {
			return false
		}
	}
	return s != ""
}

func isTchar(c byte) bool {
	return isAlnum(c) || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0
}
