package s3

import (
	"io/fs"
	"reflect"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"catalogd/internal/s3gateway/gatewaytest"
	"catalogd/internal/storage"
)

// A look makes no store; package doctor tests what it sees.
func TestLook(t *testing.T) {
	g := gatewaytest.Start(t)
	l, err := NewLook(t.Context(), configFor(g, "s3://"+gatewaytest.Bucket(t, g)+"/a"))
	ok(t, err)
	for range 2 {
		_, err = l.Sentinel(t.Context())
		is(t, err, fs.ErrNotExist)
		_, err = l.Capabilities(t.Context())
		ok(t, err)
		denied, err := l.Denied(t.Context())
		ok(t, err)
		same(t, len(denied), 0)
	}
	cfg := configFor(g, l.URL())
	s, err := Open(t.Context(), cfg)
	ok(t, err)
	id, err := l.Sentinel(t.Context())
	ok(t, err)
	same(t, id, s.ID())
	cfg.URL += "/b/c"
	l, err = NewLook(t.Context(), cfg)
	ok(t, err)
	_, err = l.Sentinel(t.Context())
	is(t, err, ErrWithin, s.ID(), s.URL())
	is(t, err, storage.ErrSentinel)
}

// What rules, whoever set them, do to a store.
func TestJudgeRules(t *testing.T) {
	s := &Store{root: "some/prefix/"}
	under := func(prefix string) *types.LifecycleRuleFilter { return &types.LifecycleRuleFilter{Prefix: &prefix} }
	expire := func(days int32, filter *types.LifecycleRuleFilter) types.LifecycleRule {
		return types.LifecycleRule{ID: aws.String("x"), Status: types.ExpirationStatusEnabled, Filter: filter, Expiration: &types.LifecycleExpiration{Days: &days}}
	}
	abort := func(days int32, filter *types.LifecycleRuleFilter) types.LifecycleRule {
		return types.LifecycleRule{Status: types.ExpirationStatusEnabled, Filter: filter, AbortIncompleteMultipartUpload: &types.AbortIncompleteMultipartUpload{DaysAfterInitiation: &days}}
	}
	disabled := s.rules()
	disabled[0].Status = types.ExpirationStatusDisabled
	tagged := &types.LifecycleRuleFilter{Tag: &types.Tag{Key: aws.String("a"), Value: aws.String("b")}}
	taggedToo := &types.LifecycleRuleFilter{And: &types.LifecycleRuleAndOperator{Prefix: aws.String("some/"), Tags: []types.Tag{*tagged.Tag}}}
	large := &types.LifecycleRuleFilter{And: &types.LifecycleRuleAndOperator{Prefix: aws.String("some/prefix/.staging/"), ObjectSizeGreaterThan: aws.Int64(1)}}
	old := expire(3, nil)
	old.Prefix = aws.String("some/prefix/.staging/") //nolint:staticcheck // deprecated, and in buckets
	for name, test := range map[string]struct {
		rules []types.LifecycleRule
		want  Rules
	}{
		"none":            {nil, Rules{}},
		"ours":            {s.rules(), Rules{Staged: 7, Uploads: 7}},
		"one is off":      {disabled, Rules{Uploads: 7}},
		"two for one":     {append(s.rules(), expire(3, under("some/prefix/.staging/"))), Rules{Staged: 3, Uploads: 7}},
		"in the old form": {[]types.LifecycleRule{old}, Rules{Staged: 3}},
		"all uploads":     {[]types.LifecycleRule{abort(9, under(""))}, Rules{Uploads: 9}},
		"others' uploads": {[]types.LifecycleRule{abort(9, under("some/prefix/landcover/"))}, Rules{}},
		"all objects":     {[]types.LifecycleRule{expire(9, under(""))}, Rules{Staged: 9, Outputs: []string{"x"}}},
		"a collection":    {[]types.LifecycleRule{expire(9, under("some/prefix/landcover/"))}, Rules{Outputs: []string{"x"}}},
		"of the trash":    {[]types.LifecycleRule{expire(9, under("some/prefix/.trash/"))}, Rules{}},
		"another prefix":  {[]types.LifecycleRule{expire(9, under("some/prefix-2/"))}, Rules{}},
		"with tags":       {[]types.LifecycleRule{expire(9, tagged), expire(9, taggedToo)}, Rules{}},
		"large ones only": {[]types.LifecycleRule{expire(9, large)}, Rules{}},
	} {
		if got := s.judge(test.rules); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: got %+v, want %+v", name, got, test.want)
		}
	}
}
