package client

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"catalogd/internal/catalog"
)

// Members makes a JSON object of arguments as HTTPie has them: key=text, or
// key:=json. of says what they are members of, for errors.
func Members(of string, args []string) (json.RawMessage, error) {
	seen := map[string]bool{}
	var object bytes.Buffer
	object.WriteByte('{')
	for _, arg := range args {
		key, value, ok := strings.Cut(arg, "=")
		key, raw := strings.CutSuffix(key, ":")
		switch {
		case !utf8.ValidString(arg):
			// encoding/json would make all such characters one.
			return nil, fmt.Errorf("%s: %q is not UTF-8: send it in another form", of, arg)
		case !ok || key == "":
			return nil, fmt.Errorf("%s: %q is neither KEY=TEXT nor KEY:=JSON", of, arg)
		case seen[key]:
			return nil, fmt.Errorf("%s: %q comes twice", of, key)
		case raw && !json.Valid([]byte(value)):
			return nil, fmt.Errorf("%s: %q is not JSON; for text write %s=%s", of, arg, key, value)
		case !raw:
			quoted, err := json.Marshal(value)
			if err != nil {
				return nil, err
			}
			value = string(quoted)
		}
		if len(seen) > 0 {
			object.WriteByte(',')
		}
		seen[key] = true
		quoted, err := json.Marshal(key)
		if err != nil {
			return nil, err
		}
		object.Write(quoted)
		object.WriteByte(':')
		object.WriteString(value)
	}
	object.WriteByte('}')
	return object.Bytes(), nil
}

// NewUnit names a unit of work by its place and the members of its identity, or by
// its identity as JSON, which may be @FILE.
func NewUnit(collection, tileID string, members []string, identity string) (catalog.Unit, error) {
	raw := []byte(identity)
	switch {
	case identity != "" && len(members) > 0:
		return catalog.Unit{}, fmt.Errorf("give the identity as members or as --identity, not both")
	case strings.HasPrefix(identity, "@"):
		f, err := os.Open(identity[1:])
		if err != nil {
			return catalog.Unit{}, fmt.Errorf("read the identity: %w", err)
		}
		defer f.Close()
		if raw, err = io.ReadAll(io.LimitReader(f, catalog.MaxIdentityBytes+1)); err != nil {
			return catalog.Unit{}, fmt.Errorf("read the identity: %w", err)
		}
	case identity == "":
		var err error
		if raw, err = Members("identity", members); err != nil {
			return catalog.Unit{}, err
		}
	}
	return catalog.NewUnit(collection, tileID, raw, "")
}
