package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"catalogd/internal/catalog"
)

const selectToken = `SELECT name, role, created_at, expires_at, revoked_at FROM catalog.tokens`

func scanToken(row pgx.CollectableRow) (catalog.Token, error) {
	var t catalog.Token
	err := row.Scan(&t.Name, &t.Role, &t.CreatedAt, &t.ExpiresAt, &t.RevokedAt)
	return t, err
}

// CreateToken stores a token's hash. A name is given once. CodeTokenExists.
func (db *DB) CreateToken(ctx context.Context, t catalog.Token, hash [32]byte) error {
	_, err := db.pool.Exec(ctx, `INSERT INTO catalog.tokens (name, role, hash, expires_at) VALUES (@name, @role, @hash, @expires)`,
		pgx.StrictNamedArgs{"name": t.Name, "role": t.Role, "hash": hash[:], "expires": t.ExpiresAt})
	if violates(err, "tokens_pkey") {
		return catalog.Errorf(catalog.CodeTokenExists, "there is, or was, a token named %q: audit tells tokens by their names, so choose another", t.Name).At("/name")
	}
	return problem("create a token", err)
}

// AdmitToken makes a token of this text valid under a name that is the
// program's own, in place of the one that had the name before.
func (db *DB) AdmitToken(ctx context.Context, name string, role catalog.Role, hash [32]byte) error {
	_, err := db.pool.Exec(ctx, `
INSERT INTO catalog.tokens (name, role, hash) VALUES (@name, @role, @hash)
ON CONFLICT ON CONSTRAINT tokens_pkey DO UPDATE SET hash = EXCLUDED.hash, role = EXCLUDED.role, revoked_at = NULL
WHERE (tokens.hash, tokens.role) IS DISTINCT FROM (EXCLUDED.hash, EXCLUDED.role) OR tokens.revoked_at IS NOT NULL`,
		pgx.StrictNamedArgs{"name": name, "role": role, "hash": hash[:]})
	return problem("admit a token", err)
}

// Tokens lists all, revoked ones too, by name.
func (db *DB) Tokens(ctx context.Context) ([]catalog.Token, error) {
	rows, err := db.pool.Query(ctx, selectToken+` ORDER BY name`)
	if err != nil {
		return nil, problem("list tokens", err)
	}
	tokens, err := pgx.CollectRows(rows, scanToken)
	return tokens, problem("list tokens", err)
}

// RevokeToken ends a token. Revoking twice is revoking once. CodeNotFound.
func (db *DB) RevokeToken(ctx context.Context, name, who string) error {
	var known bool
	err := db.pool.QueryRow(ctx, `
WITH revoked AS (
    UPDATE catalog.tokens SET revoked_at = clock_timestamp() WHERE name = @name AND revoked_at IS NULL RETURNING name
), audited AS (
    INSERT INTO catalog.audit (who, act, target) SELECT @who, 'revoke token', name FROM revoked
)
SELECT EXISTS (SELECT FROM catalog.tokens WHERE name = @name)`, pgx.StrictNamedArgs{"name": name, "who": who}).Scan(&known)
	if err == nil && !known {
		return catalog.Errorf(catalog.CodeNotFound, "there is no token %q", name)
	}
	return problem("revoke a token", err)
}

// Token finds a valid token by its hash. Unknown, expired and revoked ones are
// not told apart. CodeUnauthenticated.
func (db *DB) Token(ctx context.Context, hash [32]byte) (catalog.Token, error) {
	rows, err := db.pool.Query(ctx, selectToken+` WHERE hash = @hash`, pgx.StrictNamedArgs{"hash": hash[:]})
	if err != nil {
		return catalog.Token{}, problem("look a token up", err)
	}
	token, err := pgx.CollectExactlyOneRow(rows, scanToken)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && !token.Valid(time.Now()) {
		return catalog.Token{}, catalog.Errorf(catalog.CodeUnauthenticated, "the token is not valid: ask an administrator for one")
	}
	return token, problem("look a token up", err)
}
