package server

import (
	"bytes"
	"maps"
	"net/http"
	"slices"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/outcrop-cloud/outcrop/internal/fault"
)

// maxNeedless bounds a body that is only looked at to be refused.
const maxNeedless = 64 << 10

// bodiless refuses what an operation that takes no body would drop without a word
// (contract E-05).
func (s *Server) bodiless(ctx huma.Context, next func(huma.Context)) {
	if o := ctx.Operation(); o.RequestBody == nil && o.Method != http.MethodGet {
		r, w := humago.Unwrap(ctx)
		if err := noFields(w, r); err != nil {
			s.refuse(w, r, err)
			return
		}
	}
	next(ctx)
}

// noFields is nil for no body and for an object without fields.
func noFields(w http.ResponseWriter, r *http.Request) error {
	b, over, err := readBody(w, r, maxNeedless)
	switch {
	case err != nil:
		return err
	case over:
		return fault.New(fault.TooLarge, "this request takes no body; leave it out")
	case len(bytes.TrimSpace(b)) == 0:
		return nil
	}
	var given map[string]jsontext.Value
	if jsonv2.Unmarshal(b, &given) != nil {
		return fault.InvalidFields([]fault.Field{{Message: "this request takes no body; leave it out"}})
	}
	var fields []fault.Field
	for _, name := range slices.Sorted(maps.Keys(given)) {
		fields = append(fields, fault.Field{Path: name, Message: "is no field of this request, which takes none"})
	}
	return fault.InvalidFields(fields)
}
