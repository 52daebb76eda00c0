// Package registry is the part of the API that keeps images: what apply pushed, for the nodes
// to pull (OCI distribution specification 1.1).
package registry

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/router"
)

// Deps are what the registry needs of others.
type Deps struct {
	Dir   string // of the server; the images are in a folder of it
	Quota int64  // bytes of one tenant's images, for its users; 0: the default
	// Planned reports whether a node's plan names an image of a repository; nil: all may be pulled.
	Planned func(node, repository string) bool
	// Used are the images that must stay.
	Used  func(context.Context) ([]string, error)
	Log   *slog.Logger
	Clock onpath.Clock
}

// Registry serves images, and removes those that nothing uses.
type Registry struct {
	images *images
	used   func(context.Context) ([]string, error)
	log    *slog.Logger
	fail   func(http.ResponseWriter, *http.Request, error)
}

// New makes the registry of what is in the folder.
func New(d Deps) (*Registry, error) {
	im, err := openRegistry(d.Dir, d.Quota, d.Clock, d.Log)
	if err != nil {
		return nil, err
	}
	im.planned = d.Planned
	return &Registry{images: im, used: d.Used, log: d.Log}, nil
}

// Register adds the registry's routes. They decide themselves who may.
func (g *Registry) Register(rt *router.Router) {
	g.fail = rt.Fail
	rt.HandleOwn("/v2/", g.serveImages)
}

func (g *Registry) serveImages(w http.ResponseWriter, r *http.Request) {
	err := g.images.serve(w, r)
	var known *refusal
	if !errors.As(err, &known) {
		if err != nil {
			g.fail(w, r, err)
		}
		return
	}
	type one struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(known.status)
	_ = json.NewEncoder(w).Encode(map[string][]one{"errors": {{known.code, known.message}}})
}

// Run removes images that nothing uses, until ctx ends.
func (g *Registry) Run(ctx context.Context) {
	t := time.NewTicker(sweepEvery)
	defer t.Stop()
	for {
		if err := g.sweep(ctx); err != nil && ctx.Err() == nil {
			g.log.Warn("unused images could not be removed", "error", err)
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

func (g *Registry) sweep(ctx context.Context) error {
	used, err := g.used(ctx)
	if err != nil {
		return err
	}
	return g.images.sweep(used)
}
