package api

import (
	"bytes"
	"encoding/json"
	"reflect"

	"github.com/danielgtaylor/huma/v2"
)

// Nullable is a field of a PATCH that can be absent (leave it), null (back to
// the default) or a value.
type Nullable[T any] struct {
	Set   bool // the field was there
	Null  bool // and it was null
	Value T
}

// UnmarshalJSON is called only for a field that is there.
func (n *Nullable[T]) UnmarshalJSON(b []byte) error {
	n.Set = true
	if bytes.Equal(b, []byte("null")) {
		n.Null = true
		return nil
	}
	return json.Unmarshal(b, &n.Value)
}

// MarshalJSON writes null or the value; give the field omitzero.
func (n Nullable[T]) MarshalJSON() ([]byte, error) {
	if n.Null {
		return []byte("null"), nil
	}
	return json.Marshal(n.Value)
}

// Pointer is the value, or nil for null. Ask only when Set.
func (n Nullable[T]) Pointer() *T {
	if n.Null {
		return nil
	}
	return &n.Value
}

// Schema says that null is allowed (OpenAPI 3.1).
func (n Nullable[T]) Schema(r huma.Registry) *huma.Schema {
	s := *huma.SchemaFromType(r, reflect.TypeFor[T]())
	s.Nullable = true
	return &s
}
