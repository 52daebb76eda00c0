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
	var list []localImage
	var missing onpath.Errors
	for _, d := range docs {
		f, ok := d.Object.(*onpath.Function)
		if !ok {
			continue
		}
		for _, b := range f.Spec.Brings().Images {
			l := localImage{f, b.Field, b.Image}
			switch image := *l.image; {
			case onpath.LocalImage(image):
				if _, err := os.Stat(image); err != nil {
					missing = append(missing, l.fault(onpath.CodeInvalid, fmt.Errorf("%s: there is no such file or directory", image)))
					continue
				}
				list = append(list, l)
			case strings.HasPrefix(image, onpath.ImageHost+"/"):
				has, err := cl.HasImage(c.Context(), image)
				if err != nil {
					return err
				}
				if !has {
					e := l.fault(onpath.CodeInvalid,
						fmt.Errorf("the server does not keep %s: it was pushed to another one, or nothing used it any more", image))
					e.Remedy = "write the path of the image's archive or layout, and apply pushes it"
					missing = append(missing, e)
				}
			} // others the nodes fetch; what comes of it the chain's status says
		}
	}
	if len(missing) > 0 {
		return missing
	}
	p := newProgress(c.ErrOrStderr())
	defer p.done()
	if a.dryRun { // only the reference is needed
		for _, l := range list {
			ref, err := client.ImageRef(l.function.Metadata.Tenant, *l.image)
			if err != nil {
				return l.fault(onpath.CodeOf(err), err)
			}
			*l.image = ref
		}
		return nil
	}
	pushed := map[string]string{} // by tenant and path
	for _, l := range list {
		path := *l.image
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
				return l.fault(onpath.CodeOf(err), err)
			}
			pushed[tenant+":"+path] = ref
		}
		*l.image = ref
	}
	return nil
}

// localImage is an image that a function names, at a field.
type localImage struct {
	function *onpath.Function
	field    string
	image    *string
}

func (l localImage) fault(code onpath.Code, err error) *onpath.Error {
	return &onpath.Error{Code: code, Object: onpath.KeyOf(l.function).String(), Field: l.field, Message: err.Error(), Cause: err}
}
