package upsert_test

import (
	"context"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
)

// inVersions is a bucket that keeps versions: at the end no final name has had two of
// other bytes.
func inVersions(t testing.TB) site {
	b := inBucket(t).(*bucket)
	b.versions = true
	must(t, gateway.Version(t.Context(), b.Name))
	t.Cleanup(func() {
		pages := awss3.NewListObjectVersionsPaginator(b.Client, &awss3.ListObjectVersionsInput{Bucket: &b.Name, Prefix: &b.Prefix})
		etags := map[string]string{}
		for pages.HasMorePages() {
			page, err := pages.NextPage(context.Background())
			must(t, err)
			for _, v := range page.Versions {
				key := strings.TrimPrefix(*v.Key, b.Prefix)
				if before, known := etags[key]; known && before != aws.ToString(v.ETag) && !strings.HasPrefix(key, ".") {
					t.Errorf("%s had two versions", key)
				}
				etags[key] = aws.ToString(v.ETag)
			}
		}
		if len(etags) == 0 {
			t.Error("the bucket kept no versions")
		}
	})
	return b
}

// A bucket that keeps versions is a store like any other: deleting leaves a marker,
// and what is under it is there for nobody.
func TestBucketWithVersions(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(*testing.T, place){
		"step": testStep, "late first": testLateFirst, "recovery": testRecoveryAgainstLiveStep, "staged changed": testStagedChanged,
		"repair": testRepairAgainstRepair, "overtaken": testOvertaken, "uploads": testUploadRaces, "staging copied": testStagingCopied,
		"late worker": testSweepBeforeLateWorker,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, inVersions)
		})
	}
}
