package migrate

// For the tests, which cannot be in this package: testdb imports it.
var Run = run

const VersionTable = versionTable
