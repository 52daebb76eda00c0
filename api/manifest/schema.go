package manifest

import _ "embed" // for the schema

// Schema is the JSON Schema (draft 2020-12) of all resources, for editors.
//
//go:embed onpath.schema.json
var Schema []byte
