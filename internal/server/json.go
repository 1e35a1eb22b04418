package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/danielgtaylor/huma/v2"
	jsonv2 "github.com/go-json-experiment/json"
)

// jsonFormat reads and writes bodies. A request is read twice: first as plain
// values, which are held against the schema, then into its type. The first
// reading is strict: a name may stand only once, text is UTF-8 without NUL.
var jsonFormat = huma.Format{Marshal: huma.DefaultJSONFormat.Marshal, Unmarshal: readJSON}

func readJSON(b []byte, v any) error {
	tree, first := v.(*any)
	if !first {
		err := json.Unmarshal(b, v)
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return fmt.Errorf("has at %s a %s that does not fit; write a whole number with digits only, below 2^63", wrong.Field, wrong.Value)
		}
		return err
	}
	if err := jsonv2.Unmarshal(b, tree); err != nil {
		return fmt.Errorf("is not JSON that can be read: %w", err)
	}
	if path, bad := unplain(*tree); bad {
		return fmt.Errorf("has the character NUL in the text at %q", path)
	}
	return nil
}

// unplain finds text that a database would choke on, and says where.
func unplain(v any) (path string, bad bool) {
	switch v := v.(type) {
	case string:
		return "", !plain(v)
	case []any:
		for i, e := range v {
			if path, bad := unplain(e); bad {
				return "[" + strconv.Itoa(i) + "]" + path, true
			}
		}
	case map[string]any:
		for k, e := range v {
			if path, bad := unplain(e); bad || !plain(k) {
				return "." + k + path, true
			}
		}
	}
	return "", false
}
