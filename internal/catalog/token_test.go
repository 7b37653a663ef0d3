package catalog

import (
	"strings"
	"testing"
	"time"
)

func TestRoleAllows(t *testing.T) {
	for _, c := range []struct {
		have, need Role
		want       bool
	}{
		{RoleRead, RoleRead, true}, {RoleRead, RoleWrite, false}, {RoleRead, RoleAdmin, false},
		{RoleWrite, RoleRead, true}, {RoleWrite, RoleWrite, true}, {RoleWrite, RoleAdmin, false},
		{RoleAdmin, RoleRead, true}, {RoleAdmin, RoleWrite, true}, {RoleAdmin, RoleAdmin, true},
		{"", RoleRead, false}, {"root", RoleRead, false}, {RoleAdmin, "", false}, {"", "", false},
	} {
		if got := c.have.Allows(c.need); got != c.want {
			t.Errorf("Role(%q).Allows(%q) = %t, want %t", c.have, c.need, got, c.want)
		}
	}
}

func TestNewToken(t *testing.T) {
	a, hash := NewToken()
	b, _ := NewToken()
	if a == b || !strings.HasPrefix(a, TokenPrefix) || len(a) != len(TokenPrefix)+43 {
		t.Errorf("tokens %q and %q: want two different ones of %s and 43 characters", a, b, TokenPrefix)
	}
	if hash != HashToken(a) {
		t.Error("the hash given is not that of the text")
	}
}

func TestTokenValid(t *testing.T) {
	now := time.Now()
	before, after := now.Add(-time.Second), now.Add(time.Second)
	for _, c := range []struct {
		name  string
		token Token
		want  bool
	}{
		{"for ever", Token{}, true},
		{"not yet expired", Token{ExpiresAt: &after}, true},
		{"expires now", Token{ExpiresAt: &now}, false},
		{"expired", Token{ExpiresAt: &before}, false},
		{"revoked", Token{RevokedAt: &before, ExpiresAt: &after}, false},
	} {
		if got := c.token.Valid(now); got != c.want {
			t.Errorf("%s: valid = %t, want %t", c.name, got, c.want)
		}
	}
}
