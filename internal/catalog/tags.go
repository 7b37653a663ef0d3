package catalog

import "strings"

// Tags that a task writes into its output, so that the object tells what it is
// without the catalogue.
const (
	TagUnitKey  = "CATALOGD_UNIT_KEY"
	TagVersion  = "CATALOGD_VERSION"
	TagIdentity = "CATALOGD_IDENTITY"
)

// Tags for the output of an attempt.
func Tags(a Attempt) map[string]string {
	return map[string]string{
		TagUnitKey:  a.UnitKey.String(),
		TagVersion:  a.Version,
		TagIdentity: string(a.Identity),
	}
}

// Mark tells whether a tag of this name, in any case, says whose an output is, and
// gives the name as Tags has it.
func Mark(name string) (mark string, ok bool) {
	for _, mark := range []string{TagUnitKey, TagVersion, TagIdentity} {
		if strings.EqualFold(name, mark) {
			return mark, true
		}
	}
	return "", false
}

// CheckTags refuses an output that says it is another unit's. An output without
// tags is nobody else's.
func CheckTags(found map[string]string, a Attempt) error {
	for _, tag := range []struct{ name, want string }{{TagUnitKey, a.UnitKey.String()}, {TagVersion, a.Version}} {
		if got, ok := found[tag.name]; ok && got != tag.want {
			return Errorf(CodeIdentityMismatch, "the output's tag %s is %q, but the attempt is for %q: the task wrote another unit's output here", tag.name, got, tag.want)
		}
	}
	if got, ok := found[TagIdentity]; ok {
		// Compared by value: the writer may have spelt it in another way.
		identity, err := ParseIdentity([]byte(got))
		if err != nil || string(identity.Canonical()) != string(a.Identity) {
			return Errorf(CodeIdentityMismatch, "the output's tag %s is %.500q, but the attempt is for %.500q: the task wrote another unit's output here", TagIdentity, got, a.Identity)
		}
	}
	return nil
}
