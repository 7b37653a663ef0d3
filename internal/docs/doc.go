// Package docs holds README.md and docs/*.md to the truth: its tests follow
// every link, look up the code, settings and metrics that the pages name, and
// run their SQL. There is nothing else in it.
package docs
