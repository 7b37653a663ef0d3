package catalog

import (
	"github.com/google/uuid"
)

// Unit is one piece of work: a slot (collection and tile id) and the identity
// of what should be in it.
type Unit struct {
	// Key is derived from collection, tile id and identity; see NewUnitKey.
	Key        uuid.UUID
	Collection string
	TileID     string
	Identity   Identity
	// ClientKey is the pipeline's own key, unique within the collection; "" for none.
	ClientKey string
}

// NewUnit checks collection id, tile id and identity and derives the key.
// rawIdentity is a JSON object as it came from the client.
func NewUnit(collection, tileID string, rawIdentity []byte, clientKey string) (Unit, error) {
	identity, err := ParseIdentity(rawIdentity)
	if err != nil {
		return Unit{}, err
	}
	key, err := NewUnitKey(collection, tileID, identity)
	if err != nil {
		return Unit{}, err
	}
	return Unit{Key: key, Collection: collection, TileID: tileID, Identity: identity, ClientKey: clientKey}, nil
}
