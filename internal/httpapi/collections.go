package httpapi

import (
	"cmp"
	"context"
	"time"

	"catalogd/internal/catalog"
)

func (s *server) ListCollections(ctx context.Context, _ ListCollectionsRequestObject) (ListCollectionsResponseObject, error) {
	all, err := s.Catalogue.Collections(ctx)
	if err != nil {
		return nil, err
	}
	out := ListCollections200JSONResponse{Collections: make([]Collection, len(all))}
	for i, c := range all {
		out.Collections[i] = toCollection(c)
	}
	return out, nil
}

func (s *server) CreateCollection(ctx context.Context, req CreateCollectionRequestObject) (CreateCollectionResponseObject, error) {
	b := req.Body
	if err := catalog.CheckCollectionID(b.Id); err != nil {
		return nil, err
	}
	c, err := newCollection(b.Id, CollectionUpdate{
		Title: b.Title, Description: b.Description, License: b.License, Store: b.Store, MediaType: b.MediaType,
		Drivers: b.Drivers,
		OrderBy: b.OrderBy, SparseAllowed: b.SparseAllowed, FootprintOptional: b.FootprintOptional,
		DecodeAlways: b.DecodeAlways, StagingCopied: b.StagingCopied, Publish: b.Publish, OutageFrac: b.OutageFrac,
		MaxRetries: b.MaxRetries, RetryBaseSeconds: b.RetryBaseSeconds, RetryCapSeconds: b.RetryCapSeconds,
		MaxExpiries: b.MaxExpiries, FailureRules: b.FailureRules,
	})
	if err != nil {
		return nil, err
	}
	if c, err = s.Catalogue.CreateCollection(ctx, c); err != nil {
		return nil, err
	}
	return CreateCollection201JSONResponse{
		Body:    toCollection(c),
		Headers: CreateCollection201ResponseHeaders{Location: new(exchangeOf(ctx).base + "/v1/collections/" + c.ID)},
	}, nil
}

func (s *server) GetCollection(ctx context.Context, req GetCollectionRequestObject) (GetCollectionResponseObject, error) {
	if err := catalog.CheckCollectionID(req.Id); err != nil {
		return nil, err
	}
	c, err := s.Catalogue.Collection(ctx, req.Id)
	if err != nil {
		return nil, err
	}
	return GetCollection200JSONResponse(toCollection(c)), nil
}

func (s *server) UpdateCollection(ctx context.Context, req UpdateCollectionRequestObject) (UpdateCollectionResponseObject, error) {
	if err := catalog.CheckCollectionID(req.Id); err != nil {
		return nil, err
	}
	before, err := s.Catalogue.Collection(ctx, req.Id)
	if err != nil {
		return nil, err
	}
	c, err := newCollection(req.Id, *req.Body)
	if err != nil {
		return nil, err
	}
	c.CreatedAt = before.CreatedAt
	if c, err = s.Catalogue.UpdateCollection(ctx, c); err != nil {
		return nil, err
	}
	return UpdateCollection200JSONResponse(toCollection(c)), nil
}

func (s *server) DeleteCollection(ctx context.Context, req DeleteCollectionRequestObject) (DeleteCollectionResponseObject, error) {
	if err := catalog.CheckCollectionID(req.Id); err != nil {
		return nil, err
	}
	if err := s.Catalogue.DeleteCollection(ctx, req.Id, exchangeOf(ctx).who, req.Params.Why); err != nil {
		return nil, err
	}
	return DeleteCollection204Response{}, nil
}

// newCollection fills in defaults.
func newCollection(id string, u CollectionUpdate) (catalog.Collection, error) {
	c := catalog.Collection{
		ID: id, Title: value(u.Title), Description: value(u.Description), License: value(u.License),
		Store: value(u.Store), MediaType: value(u.MediaType),
		Policy: catalog.Policy{
			Drivers: value(u.Drivers),
			OrderBy: catalog.Order(value(u.OrderBy)), SparseAllowed: value(u.SparseAllowed),
			FootprintOptional: value(u.FootprintOptional), DecodeAlways: value(u.DecodeAlways),
			StagingCopied: value(u.StagingCopied), Retry: retryPolicy(u),
			Publish: catalog.PublishWhen(value(u.Publish)),
		},
	}
	if c.License == "" {
		c.License = "other"
	}
	if c.Policy.OrderBy == "" {
		c.Policy.OrderBy = catalog.OrderVersion
	}
	return c, c.Settle()
}

// retryPolicy is the default where nothing else is said.
func retryPolicy(u CollectionUpdate) catalog.RetryPolicy {
	p := catalog.DefaultRetryPolicy
	if u.MaxRetries != nil {
		p.MaxRetries = *u.MaxRetries
	}
	if u.RetryBaseSeconds != nil {
		p.Base = seconds(*u.RetryBaseSeconds)
	}
	if u.RetryCapSeconds != nil {
		p.Cap = seconds(*u.RetryCapSeconds)
	}
	if u.MaxExpiries != nil {
		p.MaxExpiries = *u.MaxExpiries
	}
	if u.OutageFrac != nil {
		p.OutageFrac = *u.OutageFrac
	}
	for _, rule := range value(u.FailureRules) {
		p.Rules = append(p.Rules, catalog.FailureRule{Reason: rule.Reason, Class: catalog.Class(rule.Class)})
	}
	return p
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func toCollection(c catalog.Collection) Collection {
	retry := c.Policy.Retry.OrDefault()
	rules := make([]FailureRule, len(retry.Rules))
	for i, rule := range retry.Rules {
		rules[i] = FailureRule{Reason: rule.Reason, Class: FailureClass(rule.Class)}
	}
	return Collection{
		Publish: PublishWhen(cmp.Or(c.Policy.Publish, catalog.PublishOnRegister)), OutageFrac: retry.OutageFrac,
		Id: c.ID, Title: c.Title, Description: c.Description, License: c.License, Store: c.Store, StoreId: c.StoreID,
		MediaType: c.MediaType, Drivers: c.Policy.Drivers, OrderBy: OrderBy(c.Policy.OrderBy), SparseAllowed: c.Policy.SparseAllowed,
		FootprintOptional: c.Policy.FootprintOptional, DecodeAlways: c.Policy.DecodeAlways,
		StagingCopied: c.Policy.StagingCopied,
		MaxRetries:    retry.MaxRetries, RetryBaseSeconds: retry.Base.Seconds(), RetryCapSeconds: retry.Cap.Seconds(),
		MaxExpiries: retry.MaxExpiries, FailureRules: rules, CreatedAt: c.CreatedAt, UpdatedAt: c.UpdatedAt,
	}
}
