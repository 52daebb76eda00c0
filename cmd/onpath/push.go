package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/api/manifest"
	"github.com/onpath/onpath/internal/render"
)

// pushImages sends images that are files to the server and puts the references
// under which nodes pull them into the functions. Nothing is sent unless all
// are there.
func (a *applyFlags) pushImages(c *cobra.Command, cl *client.Client, docs []*manifest.Document) error {
	type local struct {
		function *onpath.Function
		doc      *manifest.Document
	}
	var list []local
	var missing onpath.Errors
	for _, d := range docs {
		f, ok := d.Object.(*onpath.Function)
		if !ok || f.Spec.Container == nil {
			continue
		}
		if image := f.Spec.Container.Image; !onpath.LocalImage(image) {
			if !strings.HasPrefix(image, onpath.ImageHost+"/") {
				continue // the nodes fetch it; what comes of it the chain's status says
			}
			has, err := cl.HasImage(c.Context(), image)
			if err != nil {
				return err
			}
			if !has {
				e := imageError(f, onpath.CodeInvalid, fmt.Errorf("the server does not keep %s: it was pushed to another one, or nothing used it any more", image))
				e.Remedy = "write the path of the image's archive or layout, and apply pushes it"
				missing = append(missing, e)
			}
			continue
		}
		if _, err := os.Stat(f.Spec.Container.Image); err != nil {
			missing = append(missing, imageError(f, onpath.CodeInvalid, fmt.Errorf("%s: there is no such file or directory", f.Spec.Container.Image)))
			continue
		}
		list = append(list, local{f, d})
	}
	if len(missing) > 0 {
		return missing
	}
	p := newProgress(c.ErrOrStderr())
	defer p.done()
	if a.dryRun { // only the reference is needed
		for _, l := range list {
			ref, err := client.ImageRef(l.function.Metadata.Tenant, l.function.Spec.Container.Image)
			if err != nil {
				return imageError(l.function, onpath.CodeOf(err), err)
			}
			l.function.Spec.Container.Image = ref
		}
		return nil
	}
	pushed := map[string]string{} // by tenant and path
	for _, l := range list {
		path := l.function.Spec.Container.Image
		tenant := l.function.Metadata.Tenant
		ref, done := pushed[tenant+":"+path]
		if !done {
			var err error
			told := time.Now()
			ref, err = cl.PushImage(c.Context(), tenant, path, func(done, total int64) {
				if !p.terminal && done < total && time.Since(told) < 10*time.Second {
					return // a line per image, or per ten seconds
				}
				told = time.Now()
				p.show("image %s: %s of %s", path, render.Bytes(uint64(done)), render.Bytes(uint64(total)))
			})
			if err != nil {
				return imageError(l.function, onpath.CodeOf(err), err)
			}
			pushed[tenant+":"+path] = ref
		}
		l.function.Spec.Container.Image = ref
	}
	return nil
}

func imageError(f *onpath.Function, code onpath.Code, err error) *onpath.Error {
	return &onpath.Error{Code: code, Object: onpath.KeyOf(f).String(), Field: "spec.container.image", Message: err.Error(), Cause: err}
}
