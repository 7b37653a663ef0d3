package httpapi

import (
	"context"
	"time"

	"catalogd/internal/catalog"
)

func (s *server) PublishVersion(ctx context.Context, req PublishVersionRequestObject) (PublishVersionResponseObject, error) {
	p, err := s.Step.Publish(ctx, req.Body.Collection, req.Body.Version, exchangeOf(ctx).who, req.Body.Why)
	if err != nil {
		return nil, err
	}
	return PublishVersion200JSONResponse{
		Collection: p.Collection, Version: p.Version, Rank: p.Rank, Moved: p.Moved, Slots: p.Slots,
	}, nil
}

func (s *server) Recover(ctx context.Context, _ RecoverRequestObject) (RecoverResponseObject, error) {
	r, err := s.Step.Recover(ctx)
	if err != nil {
		return nil, err
	}
	return Recover200JSONResponse{
		RolledForward: r.RolledForward, Overtaken: r.Overtaken, Failed: r.Failed,
		Unfinished: r.Unfinished, Published: r.Published,
	}, nil
}

func (s *server) Sweep(ctx context.Context, _ SweepRequestObject) (SweepResponseObject, error) {
	r, err := s.Step.Sweep(ctx)
	if err != nil {
		return nil, err
	}
	return Sweep200JSONResponse{
		Expired: r.Expired, Attempts: r.Attempts, Objects: r.Objects, Bytes: r.Bytes,
		Uploads: r.Uploads, Relinked: r.Relinked, Kept: r.Kept,
	}, nil
}

func (s *server) ListTokens(ctx context.Context, _ ListTokensRequestObject) (ListTokensResponseObject, error) {
	all, err := s.Catalogue.Tokens(ctx)
	if err != nil {
		return nil, err
	}
	out := ListTokens200JSONResponse{Tokens: make([]Token, len(all))}
	for i, t := range all {
		out.Tokens[i] = Token{
			Name: t.Name, Role: Role(t.Role), CreatedAt: t.CreatedAt, ExpiresAt: t.ExpiresAt, RevokedAt: t.RevokedAt,
		}
	}
	return out, nil
}

func (s *server) CreateToken(ctx context.Context, req CreateTokenRequestObject) (CreateTokenResponseObject, error) {
	now := time.Now().UTC()
	token := catalog.Token{
		Name: req.Body.Name, Role: catalog.Role(req.Body.Role), CreatedAt: now, ExpiresAt: req.Body.ExpiresAt,
	}
	if !token.Valid(now) {
		return nil, catalog.Errorf(catalog.CodeInvalidRequest, "the token would have expired already: send a later time, or leave it out").At("/expires_at")
	}
	text, hash := catalog.NewToken()
	if err := s.Catalogue.CreateToken(ctx, token, hash); err != nil {
		return nil, err
	}
	return CreateToken201JSONResponse{
		Name: token.Name, Role: Role(token.Role), CreatedAt: token.CreatedAt, ExpiresAt: token.ExpiresAt, Token: text,
	}, nil
}

func (s *server) RevokeToken(ctx context.Context, req RevokeTokenRequestObject) (RevokeTokenResponseObject, error) {
	if err := s.Catalogue.RevokeToken(ctx, req.Name, exchangeOf(ctx).who); err != nil {
		return nil, err
	}
	s.tokens.forget()
	return RevokeToken204Response{}, nil
}
