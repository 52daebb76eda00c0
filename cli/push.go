package cli

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/api/manifest"
	"github.com/onpath/onpath/cli/render"
)

// pushImages sends images that are files to the server and puts the references
// under which nodes pull them into the functions. Nothing is sent unless all
// are there.
func (a *applyFlags) pushImages(c *cobra.Command, cl *client.Client, docs []*manifest.Document) error {
	var list, tagged []localImage
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
			case client.Tagged(image):
				tagged = append(tagged, l)
			} // what has a digest the nodes fetch; what comes of that the chain's status says
		}
	}
	if len(missing) > 0 {
		return missing
	}
	a.pinImages(c, cl, tagged)
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

// pinImages puts the digest beside each tag, as the registry says now or did at an earlier
// apply. a.notes say what follows where the registry says nothing.
func (a *applyFlags) pinImages(c *cobra.Command, cl *client.Client, list []localImage) {
	var names []string
	for _, l := range list {
		names = append(names, *l.image)
	}
	refs, errs := client.ResolveImages(c.Context(), names)
	for _, l := range list {
		if ref := refs[*l.image]; ref != "" {
			*l.image = ref
			continue
		}
		note := "the function keeps the tag: every start asks the registry, and may meet another image"
		err := errs[*l.image]
		if ref := l.applied(c.Context(), cl); ref != "" {
			*l.image, note = ref, "the digest of the last apply stays"
		}
		a.notes = append(a.notes, fmt.Sprintf("%v; %s", err, note))
	}
}

// applied is the reference with a digest that the server has for the same tag, "" if none.
func (l localImage) applied(ctx context.Context, cl *client.Client) string {
	o, err := cl.Get(ctx, onpath.KeyOf(l.function))
	f, ok := o.(*onpath.Function)
	if err != nil || !ok {
		return ""
	}
	for _, b := range f.Spec.Brings().Images {
		if b.Field == l.field && strings.HasPrefix(*b.Image, *l.image+"@") {
			return *b.Image
		}
	}
	return ""
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
