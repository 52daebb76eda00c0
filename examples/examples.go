// Package examples carries the runnable YAML files inside the program, so that
// `onpath demo` needs no checkout.
package examples

import "embed"

// FS holds the files of this folder.
//
//go:embed lab/*.yaml anywhere/*.yaml quickstart/*.yaml own/*.yaml module/* signal/* cdn/* reserve/*.yaml attach/*.yaml trust/* pair/*.yaml
var FS embed.FS
