package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"

	"catalogd/internal/storage/s3"
)

const day = 24 * time.Hour

// lifecycle looks at what the bucket's rules remove.
func (b *bucket) lifecycle(ctx context.Context) {
	rules, err := b.Rules(ctx)
	if err != nil {
		b.say("lifecycle", Warn, "the bucket's rules cannot be had: "+err.Error(),
			"catalogd doctor --install-lifecycle prints the rules, to be set with the server's own tools; what they would remove a running catalogd sweeps")
		return
	}
	b.judgeRules(rules)
}

func (b *bucket) judgeRules(rules s3.Rules) {
	found := fmt.Sprintf("staged objects are removed after %s, uploads aborted after %s", days(rules.Staged), days(rules.Uploads))
	first := rules.Staged
	if first == 0 || rules.Uploads > 0 && rules.Uploads < first {
		first = rules.Uploads
	}
	switch {
	case len(rules.Outputs) > 0:
		b.say("lifecycle", Lacks, fmt.Sprintf("the rule %q removes outputs", rules.Outputs[0]), "take the store's prefix out of it")
	case first > 0 && b.needs() >= time.Duration(first)*day:
		b.say("lifecycle", Lacks, fmt.Sprintf("%s: what an attempt works on, which may take %v, would be removed under it", found, b.needs()),
			"shorten --lease and --sweep-grace, or lengthen the rules")
	case !rules.Installed():
		b.say("lifecycle", Warn, found+": what nobody finished stays while no catalogd runs", "catalogd doctor --install-lifecycle")
	default:
		b.ok("lifecycle", "%s", found)
	}
}

func days(n int) string {
	switch n {
	case 0:
		return "no time"
	case 1:
		return "a day"
	}
	return fmt.Sprintf("%d days", n)
}

// needs is how long an attempt may live without a sign of life.
func (e *exam) needs() time.Duration { return e.Lease + e.SweepGrace }

// InstallLifecycle sets the lifecycle rules of every store on S3, and gives what came
// of it. Where a server does not take them, the remedy holds the document with them.
func InstallLifecycle(ctx context.Context, config Config) []Finding {
	e := newExam(config)
	e.eachStore(func(s Store) {
		if s.InBucket() {
			e.install(ctx, s)
		}
	})
	return e.findings
}

func (e *exam) install(ctx context.Context, s Store) {
	ctx, cancel := context.WithTimeout(ctx, bucketDeadline)
	defer cancel()
	before := len(e.findings)
	b := e.reach(ctx, s)
	if b == nil {
		return
	}
	e.findings = e.findings[:before] // of that all is well this far
	if e.needs() >= s3.LifecycleDays*day {
		e.say("lifecycle", Lacks, fmt.Sprintf("an attempt may live for %v without a sign of life, and the rules would remove what it works on after %d days", e.needs(), s3.LifecycleDays),
			"shorten --lease and --sweep-grace")
		return
	}
	if err := b.InstallLifecycle(ctx); err != nil {
		e.say("lifecycle", Lacks, err.Error(), "set these rules with the server's own tools (aws s3api put-bucket-lifecycle-configuration --bucket "+b.Bucket()+
			" --lifecycle-configuration file://…), beside those that the bucket has; where it can have none, a running catalogd sweeps the same:\n"+strings.TrimSpace(b.Lifecycle()))
		return
	}
	b.lifecycle(ctx)
}
