package catalog

import (
	"encoding/json"

	"github.com/gowebpki/jcs"
)

// Limits of an identity.
const (
	// MaxIdentityBytes bounds the text as sent, and its canonical form.
	MaxIdentityBytes = 64 << 10
	// MaxIdentityDepth bounds nesting; the identity itself is the first level.
	MaxIdentityDepth = 32
	// MaxIdentityMembers bounds the members of all objects together.
	MaxIdentityMembers = 1000
	// MaxVersionBytes bounds the member "version".
	MaxVersionBytes = 128
)

// Identity is the JSON object of everything that decides the bytes of an
// output, in its RFC 8785 canonical form. Two identities are equal (==) exactly
// when their canonical forms are. The zero Identity is none.
type Identity struct {
	canonical string
	version   string
}

// ParseIdentity reads a JSON object with a text member "version", which is not
// empty and holds no control character.
//
// It refuses what libraries silently read in different ways, so that what is
// canonicalised is what was meant: duplicate keys, lone surrogates, invalid
// UTF-8, NUL, and numbers that a float64 cannot stand for: those beyond ±2^53,
// and those that are not zero but would round to it. Fractions are float64, as
// in RFC 8785: digits beyond its precision make no other identity.
//
// Errors: CodeInvalidIdentity, whose Field is the JSON pointer of what is at
// fault, with unprintable characters escaped as in JSON.
func ParseIdentity(raw []byte) (Identity, error) {
	if err := checkIdentitySize(raw); err != nil {
		return Identity{}, err
	}
	s := identityScanner{raw: raw}
	if err := s.document(); err != nil {
		return Identity{}, err
	}
	canonical, err := jcs.Transform(raw)
	if err != nil {
		return Identity{}, s.refuse("identity has no RFC 8785 canonical form: send what cannot be written in JSON as text").Because(err)
	}
	// Numbers can grow: 1e15 becomes 1000000000000000.
	if err := checkIdentitySize(canonical); err != nil {
		return Identity{}, err
	}
	return Identity{canonical: string(canonical), version: s.version}, nil
}

// RestoreIdentity brings an identity that was accepted before, and then kept as a
// JSON value, back into its canonical form. It sets no limits: the kept text may
// be longer, and what was accepted stays readable.
func RestoreIdentity(kept []byte) (Identity, error) {
	canonical, err := jcs.Transform(kept)
	if err != nil {
		return Identity{}, err
	}
	var members struct {
		Version string `json:"version"`
	}
	err = json.Unmarshal(canonical, &members)
	return Identity{canonical: string(canonical), version: members.Version}, err
}

func checkIdentitySize(text []byte) error {
	if len(text) > MaxIdentityBytes {
		return Errorf(CodeInvalidIdentity, "identity is %d bytes long; at most %d: send a digest in place of long lists", len(text), MaxIdentityBytes).At("/identity")
	}
	return nil
}

// Canonical is the RFC 8785 form: the bytes that the unit key is derived from.
// Nil for the zero Identity.
func (id Identity) Canonical() json.RawMessage {
	if id.canonical == "" {
		return nil
	}
	return json.RawMessage(id.canonical)
}

// Version is the member "version".
func (id Identity) Version() string { return id.version }

// String is the canonical form as text.
func (id Identity) String() string { return id.canonical }

// MarshalJSON gives the canonical form; null for the zero Identity.
func (id Identity) MarshalJSON() ([]byte, error) { return id.Canonical().MarshalJSON() }

// UnmarshalJSON is ParseIdentity.
func (id *Identity) UnmarshalJSON(raw []byte) error {
	parsed, err := ParseIdentity(raw)
	if err != nil {
		return err
	}
	*id = parsed
	return nil
}
