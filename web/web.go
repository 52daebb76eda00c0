// Package web has the console's pages as they were built (npm run build): building onpath
// needs Go alone.
package web

import (
	"embed"
	"io/fs"
)

//go:embed all:dist
var dist embed.FS

// Pages are the built files.
func Pages() fs.FS {
	pages, err := fs.Sub(dist, "dist")
	if err != nil {
		panic(err) // the name is a valid one
	}
	return pages
}
