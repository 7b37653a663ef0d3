package s3

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"catalogd/internal/storage"
)

// LifecycleDays is how long what nobody finished stays: longer than any lease, and
// than a sweep leaves it.
const LifecycleDays = 7

// rules are the two that work whether or not catalogd runs.
func (s *Store) rules() []types.LifecycleRule {
	return []types.LifecycleRule{{
		ID: aws.String("catalogd staging " + s.root), Status: types.ExpirationStatusEnabled,
		Filter:                      &types.LifecycleRuleFilter{Prefix: s.key(storage.StagingPrefix)},
		Expiration:                  &types.LifecycleExpiration{Days: aws.Int32(LifecycleDays)},
		NoncurrentVersionExpiration: &types.NoncurrentVersionExpiration{NoncurrentDays: aws.Int32(1)},
	}, {
		ID: aws.String("catalogd uploads " + s.root), Status: types.ExpirationStatusEnabled,
		Filter:                         &types.LifecycleRuleFilter{Prefix: s.key("")},
		AbortIncompleteMultipartUpload: &types.AbortIncompleteMultipartUpload{DaysAfterInitiation: aws.Int32(LifecycleDays)},
	}}
}

// Lifecycle is the document with the store's rules, as
// `aws s3api put-bucket-lifecycle-configuration --lifecycle-configuration` takes it.
func (s *Store) Lifecycle() string {
	type prefix struct{ Prefix string }
	type rule struct {
		ID, Status                     string
		Filter                         prefix
		Expiration                     map[string]int32 `json:",omitempty"`
		NoncurrentVersionExpiration    map[string]int32 `json:",omitempty"`
		AbortIncompleteMultipartUpload map[string]int32 `json:",omitempty"`
	}
	var doc struct{ Rules []rule }
	for _, r := range s.rules() {
		one := rule{ID: *r.ID, Status: string(r.Status), Filter: prefix{*r.Filter.Prefix}}
		if r.Expiration != nil {
			one.Expiration = map[string]int32{"Days": *r.Expiration.Days}
		}
		if r.NoncurrentVersionExpiration != nil {
			one.NoncurrentVersionExpiration = map[string]int32{"NoncurrentDays": *r.NoncurrentVersionExpiration.NoncurrentDays}
		}
		if r.AbortIncompleteMultipartUpload != nil {
			one.AbortIncompleteMultipartUpload = map[string]int32{"DaysAfterInitiation": *r.AbortIncompleteMultipartUpload.DaysAfterInitiation}
		}
		doc.Rules = append(doc.Rules, one)
	}
	text, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		panic(err) // strings and numbers only
	}
	return string(text)
}

// bucketLifecycle are the bucket's rules, none where none were ever set.
func (s *Store) bucketLifecycle(ctx context.Context) (*s3.GetBucketLifecycleConfigurationOutput, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeouts.Request)
	defer cancel()
	out, err := s.client.GetBucketLifecycleConfiguration(ctx, &s3.GetBucketLifecycleConfigurationInput{Bucket: &s.bucket})
	if isCode(err, "NoSuchLifecycleConfiguration") {
		return &s3.GetBucketLifecycleConfigurationOutput{}, nil
	}
	if err != nil {
		return nil, s.explain(ctx, err, "s3:GetLifecycleConfiguration", "")
	}
	return out, nil
}

// InstallLifecycle sets the store's rules beside those that the bucket has. Whoever
// changes the bucket's rules at that moment may be overwritten: S3 has only all at
// once. It needs s3:GetLifecycleConfiguration and s3:PutLifecycleConfiguration.
func (s *Store) InstallLifecycle(ctx context.Context) (err error) {
	defer wrap(&err, "install lifecycle rules")
	now, err := s.bucketLifecycle(ctx)
	if err != nil {
		return err
	}
	rules, ours := now.Rules, s.rules()
	rules = slices.DeleteFunc(rules, func(r types.LifecycleRule) bool {
		return slices.ContainsFunc(ours, func(o types.LifecycleRule) bool { return aws.ToString(o.ID) == aws.ToString(r.ID) })
	})
	for i := range rules { // those in the old form cannot stand beside ours
		if r := &rules[i]; r.Filter == nil {
			r.Filter = &types.LifecycleRuleFilter{Prefix: aws.String(rulePrefix(*r))}
			r.Prefix = nil //nolint:staticcheck // deprecated, and in buckets
		}
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeouts.Request)
	defer cancel()
	_, err = s.client.PutBucketLifecycleConfiguration(ctx, &s3.PutBucketLifecycleConfigurationInput{
		Bucket: &s.bucket, LifecycleConfiguration: &types.BucketLifecycleConfiguration{Rules: append(rules, ours...)},
		TransitionDefaultMinimumObjectSize: types.TransitionDefaultMinimumObjectSize(now.TransitionDefaultMinimumObjectSize),
	})
	if err != nil {
		return fmt.Errorf("the bucket's rules are as they were: %w", s.explain(ctx, err, "s3:PutLifecycleConfiguration", ""))
	}
	return nil
}

// Rules are what a bucket's lifecycle rules, whoever set them, do to a store.
type Rules struct {
	// Staged, Uploads: after so many days they remove staged objects, and abort uploads
	// that were not completed; 0 for never.
	Staged, Uploads int
	// Outputs are the IDs of rules that remove outputs.
	Outputs []string
}

// Installed tells whether all is removed that nobody finished.
func (r Rules) Installed() bool { return r.Staged > 0 && r.Uploads > 0 }

// judge finds what rules do below the store's prefix. Those for objects with tags do
// nothing: no object of catalogd's has one.
func (s *Store) judge(rules []types.LifecycleRule) (found Rules) {
	staging := s.root + storage.StagingPrefix
	for _, r := range rules {
		prefix, some := rulePrefix(r), false
		if f := r.Filter; f != nil {
			if f.Tag != nil || f.And != nil && len(f.And.Tags) > 0 {
				continue
			}
			// of some sizes only
			some = f.ObjectSizeGreaterThan != nil || f.ObjectSizeLessThan != nil ||
				f.And != nil && (f.And.ObjectSizeGreaterThan != nil || f.And.ObjectSizeLessThan != nil)
		}
		if r.Status != types.ExpirationStatusEnabled {
			continue
		}
		if e := r.Expiration; e != nil && (e.Days != nil || e.Date != nil) {
			if days := int(aws.ToInt32(e.Days)); !some && days > 0 && strings.HasPrefix(staging, prefix) {
				found.Staged = sooner(found.Staged, days)
			}
			own := false
			for name := range ownNames {
				own = own || strings.HasPrefix(prefix, s.root+name+"/")
			}
			if !own && (strings.HasPrefix(s.root, prefix) || strings.HasPrefix(prefix, s.root)) {
				found.Outputs = append(found.Outputs, aws.ToString(r.ID))
			}
		}
		if a := r.AbortIncompleteMultipartUpload; a != nil && strings.HasPrefix(s.root, prefix) {
			if days := int(aws.ToInt32(a.DaysAfterInitiation)); days > 0 {
				found.Uploads = sooner(found.Uploads, days)
			}
		}
	}
	return found
}

// sooner is the lesser number of days, where 0 is never.
func sooner(a, b int) int {
	if a == 0 {
		return b
	}
	return min(a, b)
}

// rulePrefix is where a rule holds, in whichever form it says so.
func rulePrefix(r types.LifecycleRule) string {
	switch {
	case r.Filter == nil:
		return aws.ToString(r.Prefix) //nolint:staticcheck // deprecated, and in buckets
	case r.Filter.And != nil:
		return aws.ToString(r.Filter.And.Prefix)
	}
	return aws.ToString(r.Filter.Prefix)
}
