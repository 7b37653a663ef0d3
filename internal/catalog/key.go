package catalog

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/google/uuid"
)

// NewUnitKey derives the key of a unit: a UUIDv8 (RFC 9562, section 5.8) made of
// the first 16 octets of SHA-256 over the RFC 8785 canonical JSON of
// {"collection", "identity", "tile_id"}, with version and variant bits set and
// no namespace before it. api/unit-key-vectors.json holds every implementation
// to it.
//
// Errors: those of CheckCollectionID and CheckTileID; CodeInvalidIdentity for
// the zero Identity.
func NewUnitKey(collection, tileID string, id Identity) (uuid.UUID, error) {
	if err := checkCollectionID(collection, "/collection"); err != nil {
		return uuid.Nil, err
	}
	if err := CheckTileID(tileID); err != nil {
		return uuid.Nil, err
	}
	if id == (Identity{}) {
		return uuid.Nil, Errorf(CodeInvalidIdentity, `identity is missing: send an object with a text member "version"`).At("/identity")
	}
	// Canonical as it stands: the members are in order, and neither kind of id
	// has a character to escape.
	sum := sha256.Sum256(fmt.Appendf(nil, `{"collection":"%s","identity":%s,"tile_id":"%s"}`, collection, id, tileID))
	key := uuid.UUID(sum[:16])
	key[6] = key[6]&0x0f | 0x80
	key[8] = key[8]&0x3f | 0x80
	return key, nil
}

// NewAttemptID makes a UUIDv7: a sequence that an old standby could repeat is
// not involved. The error is that of the system's random source.
func NewAttemptID() (uuid.UUID, error) { return uuid.NewV7() }

// FinalName is the attempt's own name for its output, written once and never
// again: {collection}/{tile_id}.{unit key: first 12 hex}.{attempt: last 12 hex}{ext}.
// The attempt's last digits are its random ones: the first 8 of UUIDv7s made
// within 65 s are the same.
func FinalName(collection, tileID string, unit, attempt uuid.UUID, ext string) string {
	return collection + "/" + tileID + "." + hex.EncodeToString(unit[:6]) + "." + hex.EncodeToString(attempt[10:]) + ext
}

// StableName is the name of a slot's current output, whatever that is:
// {collection}/{tile_id}{ext}.
func StableName(collection, tileID, ext string) string { return collection + "/" + tileID + ext }

// stagingPrefix is storage.StagingPrefix, which this package may not import.
const stagingPrefix = ".staging/"

// StagingName is where an attempt writes: .staging/{attempt}{ext}.
func StagingName(attempt uuid.UUID, ext string) string {
	return stagingPrefix + attempt.String() + ext
}

// ParseStagingName finds the attempt that a staged object belongs to: its own
// file, private temporaries and sidecars, so .staging/{attempt} followed by
// anything. It knows no attempt for names that callers chose (.staging/in/…).
func ParseStagingName(key string) (attempt uuid.UUID, ok bool) {
	rest, ok := strings.CutPrefix(key, stagingPrefix)
	if !ok || len(rest) < 36 {
		return uuid.Nil, false
	}
	attempt, err := uuid.Parse(rest[:36])
	if err != nil || attempt.String() != rest[:36] {
		return uuid.Nil, false
	}
	return attempt, true
}
