package upsert

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"catalogd/internal/catalog"
	"catalogd/internal/storage"
)

// storeProblem says what a store's error means to whoever caused it, and what
// to do. Errors that are problems already stay so.
func storeProblem(doing string, err error) *catalog.Error {
	var known *catalog.Error
	if errors.As(err, &known) {
		return known
	}
	code, remedy := catalog.CodeStoreUnavailable, "the store does not answer as it should: try again"
	for _, c := range []struct {
		is     error
		code   catalog.Code
		remedy string
	}{
		// First: a failed fsync can wrap its cause, and is final whatever that is.
		{storage.ErrSync, catalog.CodeFsyncFailed, "the store could not make the output durable: begin again, and have an operator look at the disk"},
		{storage.ErrSentinel, catalog.CodeStoreUnavailable, "the store's sentinel does not read: is the volume mounted, is the bucket there?"},
		{storage.ErrChanged, catalog.CodeStagedChanged, "the staged file was changed after it was probed: write, close, then complete; begin again"},
		{storage.ErrLinked, catalog.CodeStagedLinked, "the staged file has more than one hard link, and could be changed under the other name: remove the other link"},
		{storage.ErrNotRegular, catalog.CodeStagedForbidden, "only a regular file can be staged, no link, directory or device"},
		{storage.ErrName, catalog.CodeStagedForbidden, "the name does not resolve inside the store"},
		{storage.ErrCrossDevice, catalog.CodeCrossDevice, "staging and destination are on different filesystems, so that a rename is not atomic: have an operator mount the store as one filesystem"},
		{storage.ErrNoSpace, catalog.CodeStoreFull, "the store is full: have an operator free space, then try again"},
		{storage.ErrReadOnly, catalog.CodeStoreReadOnly, "the store is mounted read-only: have an operator mount it read-write, then try again"},
		{storage.ErrTooLarge, catalog.CodeTooLarge, "the output is larger than this server takes"},
		{storage.ErrExist, catalog.CodeInternal, "something else stands at the attempt's final name: begin again"},
		{storage.ErrNotExist, catalog.CodeStagedChanged, "the output is neither staged nor promoted any more: begin again"},
		{storage.ErrPermission, catalog.CodeStoreForbidden, "the server may not do this"},
		{storage.ErrSettings, catalog.CodeStoreUnavailable, "the store is set up wrongly"},
	} {
		if errors.Is(err, c.is) {
			code, remedy = c.code, c.remedy
			break
		}
	}
	message := fmt.Sprintf("%s: %s", doing, remedy)
	if errors.Is(err, storage.ErrPermission) || errors.Is(err, storage.ErrSettings) {
		// Uid and mode, or action and key, are what the reader needs, and all that the
		// text holds.
		message = fmt.Sprintf("%s: %s", doing, err)
	}
	return catalog.Errorf(code, "%s", message).Because(err)
}

// wrapStaged is storeProblem for reading what a task staged; nil stays nil.
func wrapStaged(a catalog.Attempt, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, storage.ErrNotExist) && strings.HasPrefix(a.StagingKey, storage.IncomingPrefix):
		return catalog.Errorf(catalog.CodeStagedMissing, "nothing is staged at %s: write the output there, below the store's root, then send this again", a.StagingKey).At("/staged")
	case errors.Is(err, storage.ErrNotExist):
		return catalog.Errorf(catalog.CodeStagedMissing, "nothing is staged at %s: write the output there, PUT it to the attempt's upload_url, or name the upload of its parts, then complete", a.StagingKey)
	case errors.Is(err, storage.ErrPermission) && !errors.Is(err, storage.ErrSettings):
		return catalog.Errorf(catalog.CodeStagedUnreadable, "the server cannot read %s: %s", a.StagingKey, err)
	}
	return storeProblem("read "+a.StagingKey, err)
}

// lost tells the late why they lost.
func lost(a catalog.Attempt) error {
	switch a.State {
	case catalog.AttemptFailed, catalog.AttemptAbandoned:
		why := ""
		if a.ErrorMessage != "" {
			why = ": " + a.ErrorMessage
		}
		return catalog.Errorf(catalog.CodeAttemptEnded, "attempt %s ended as %s%s; begin again", a.ID, a.State, why)
	case catalog.AttemptDone, catalog.AttemptOvertaken:
		return catalog.Errorf(catalog.CodeAttemptEnded, "attempt %s ended as %s", a.ID, a.State)
	default:
		return catalog.Errorf(catalog.CodeAttemptLost, "attempt %s is %s: its lease ended, or a later try took the unit over; begin again", a.ID, a.State)
	}
}

func promoting(a catalog.Attempt) error {
	return catalog.Errorf(catalog.CodeAttemptPromoting, "the output of attempt %s is being promoted and becomes a row by itself: complete again to learn the outcome", a.ID)
}

// held is the error of a caller that cannot be told to wait.
func held(d Decision) error {
	return catalog.Errorf(catalog.CodeUnitHeld, "%s: try again in %.0f s", d.Reason, math.Ceil(d.RetryAfter.Seconds()))
}
