package httpapi

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"time"

	"catalogd/internal/catalog"
)

// authorize finds out who calls, and refuses who may not. It tells a caller
// nothing of a token that does not work, least of all why.
func (s *server) authorize(r *http.Request, op *operation) (who string, err error) {
	if op.role == "" {
		return "", nil
	}
	header := r.Header.Get("Authorization")
	if header == "" {
		if s.Anonymous == AnonymousRead && catalog.RoleRead.Allows(op.role) {
			return "", nil
		}
		return "", catalog.Errorf(catalog.CodeUnauthenticated, "this needs a token: send it as Authorization: Bearer catd_…").At("Authorization")
	}
	scheme, text, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", noSuchToken()
	}
	token, err := s.tokens.get(r.Context(), s.Catalogue, catalog.HashToken(strings.TrimSpace(text)))
	switch {
	case catalog.IsCode(err, catalog.CodeUnauthenticated):
		return "", noSuchToken()
	case err != nil:
		return "", err
	case !token.Valid(time.Now()):
		return "", noSuchToken()
	case !token.Role.Allows(op.role):
		return token.Name, catalog.Errorf(catalog.CodeForbidden, "this needs the role %s; token %q has %s: ask an administrator for one with more", op.role, token.Name, token.Role).At("Authorization")
	}
	return token.Name, nil
}

func noSuchToken() error {
	return catalog.Errorf(catalog.CodeUnauthenticated, "the token does not work: it is unknown, expired or revoked; ask an administrator for a new one").At("Authorization")
}

const (
	// tokenTTL is how long a revoked token may still work.
	tokenTTL  = 10 * time.Second
	maxTokens = 10_000
)

// tokenCache spares a look-up for each request. It holds tokens that were found
// only, so that guesses cannot fill it.
type tokenCache struct {
	mu    sync.Mutex
	found map[[32]byte]foundToken
}

type foundToken struct {
	catalog.Token
	until time.Time
}

func (c *tokenCache) get(ctx context.Context, from Catalogue, hash [32]byte) (catalog.Token, error) {
	now := time.Now()
	c.mu.Lock()
	found, ok := c.found[hash]
	c.mu.Unlock()
	if ok && now.Before(found.until) {
		return found.Token, nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestDeadline)
	defer cancel()
	token, err := from.Token(ctx, hash)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		delete(c.found, hash)
		return catalog.Token{}, err
	}
	if c.found == nil || len(c.found) >= maxTokens {
		c.found = map[[32]byte]foundToken{}
	}
	c.found[hash] = foundToken{token, now.Add(tokenTTL)}
	return token, nil
}

// forget all: one of them was revoked here.
func (c *tokenCache) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.found = nil
}
