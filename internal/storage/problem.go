package storage

import (
	"context"
	"errors"

	"catalogd/internal/catalog"
)

// Problem is what those who only look at a store say of one that does not answer as it
// should: nothing of what it holds. A catalog.Error stays what it is.
func Problem(doing string, err error) error {
	var known *catalog.Error
	if errors.As(err, &known) || errors.Is(err, context.Canceled) {
		return err
	}
	code, remedy := catalog.CodeStoreUnavailable, "the store does not answer as it should: try again"
	switch {
	case errors.Is(err, ErrPermission) && !errors.Is(err, ErrSettings):
		code, remedy = catalog.CodeStoreForbidden, err.Error()
	case errors.Is(err, ErrSentinel):
		remedy = "the store's sentinel does not read: is the volume mounted, is the bucket there?"
	case errors.Is(err, ErrSettings):
		remedy = err.Error()
	}
	return catalog.Errorf(code, "%s: %s", doing, remedy).Because(err)
}
