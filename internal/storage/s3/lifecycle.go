package s3

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

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

// InstallLifecycle sets the store's rules beside those that the bucket has. Whoever
// changes the bucket's rules at that moment may be overwritten: S3 has only all at
// once. It needs s3:GetLifecycleConfiguration and s3:PutLifecycleConfiguration.
func (s *Store) InstallLifecycle(ctx context.Context) (err error) {
	defer wrap(&err, "install lifecycle rules")
	rules, err := s.lifecycleRules(ctx)
	if err != nil {
		return err
	}
	ours := s.rules()
	rules = slices.DeleteFunc(rules, func(r types.LifecycleRule) bool {
		return slices.ContainsFunc(ours, func(o types.LifecycleRule) bool { return aws.ToString(o.ID) == aws.ToString(r.ID) })
	})
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeouts.Request)
	defer cancel()
	_, err = s.client.PutBucketLifecycleConfiguration(ctx, &s3.PutBucketLifecycleConfigurationInput{
		Bucket: &s.bucket, LifecycleConfiguration: &types.BucketLifecycleConfiguration{Rules: append(rules, ours...)},
	})
	if err != nil {
		return fmt.Errorf("the bucket's rules are as they were: %w", s.explain(ctx, err, "s3:PutLifecycleConfiguration", ""))
	}
	return nil
}
