package catalog

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"time"
)

// Role is what a token may do. Each includes those before it.
type Role string

const (
	RoleRead  Role = "read"
	RoleWrite Role = "write"
	RoleAdmin Role = "admin"
)

// Roles from least to most.
var Roles = []Role{RoleRead, RoleWrite, RoleAdmin}

// Allows tells whether r includes need. A role that is not known allows
// nothing, and nothing allows a need that is not known.
func (r Role) Allows(need Role) bool {
	have, want := rank(r), rank(need)
	return want >= 0 && have >= want
}

func rank(r Role) int {
	for i, known := range Roles {
		if r == known {
			return i
		}
	}
	return -1
}

// Token is a bearer token, without its text: only its hash is kept.
type Token struct {
	// Name is unique for ever, and is what audit records as who.
	Name      string
	Role      Role
	CreatedAt time.Time
	ExpiresAt *time.Time
	RevokedAt *time.Time
}

// Valid tells whether the token works at a moment.
func (t Token) Valid(at time.Time) bool {
	return t.RevokedAt == nil && (t.ExpiresAt == nil || at.Before(*t.ExpiresAt))
}

// TokenPrefix starts the text of every token, so that scanners for leaked
// secrets can tell one.
const TokenPrefix = "catd_"

// NewToken makes the text of a token, 256 random bits, and its hash.
func NewToken() (text string, hash [32]byte) {
	var secret [32]byte
	rand.Read(secret[:]) // never fails: see crypto/rand
	text = TokenPrefix + base64.RawURLEncoding.EncodeToString(secret[:])
	return text, HashToken(text)
}

// HashToken is the SHA-256 of the whole text. The text holds 256 random bits,
// so that a slow hash would add nothing.
func HashToken(text string) [32]byte { return sha256.Sum256([]byte(text)) }
