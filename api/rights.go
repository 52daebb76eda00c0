package api

import (
	"context"
	"strings"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
)

// What a user may: read and write the objects of his tenant, read the Tenant
// itself. What a node may: open its session, pull images, renew its certificate.
// An operator may everything.

func forbidden(who auth.Identity, doing string) error {
	e := onpath.Errorf(onpath.CodeForbidden, "%s %s may not %s", who.Role, who.Name, doing)
	e.Remedy = "ask an operator"
	return e
}

// mayOperate is for what concerns all tenants.
func mayOperate(ctx context.Context, doing string) error {
	if who := whoIs(ctx); who.Role != auth.RoleOperator {
		return forbidden(who, doing)
	}
	return nil
}

func mayRead(ctx context.Context, k onpath.Key) error {
	who := whoIs(ctx)
	switch {
	case who.Role == auth.RoleOperator:
		return nil
	case who.Role == auth.RoleUser && k.Kind.Tenanted() && k.Tenant == who.Tenant:
		return nil
	case who.Role == auth.RoleUser && k.Kind == onpath.KindTenant && k.Name == who.Tenant:
		return nil
	}
	return forbidden(who, "read "+k.String())
}

func mayWrite(ctx context.Context, k onpath.Key) error {
	who := whoIs(ctx)
	switch {
	case k.Kind.ReadOnly():
		return readOnly(k)
	case who.Role == auth.RoleOperator:
		return nil
	case who.Role == auth.RoleUser && k.Kind.Tenanted() && k.Tenant == who.Tenant:
		return nil
	}
	return forbidden(who, "write "+k.String())
}

// mayAsk looks at what an object asks for: the operator's tier, files of the
// nodes, and other tenants' images are not for users.
func (s *Server) mayAsk(ctx context.Context, o onpath.Object) error {
	who := whoIs(ctx)
	if who.Role == auth.RoleOperator {
		return nil
	}
	switch o := o.(type) {
	case *onpath.Chain:
		if o.Spec.Tier == onpath.TierOperator {
			return forbidden(who, "have a chain of tier operator")
		}
	case *onpath.Function:
		if o.Spec.Traits().KernelCode {
			return s.mayRunCode(ctx, who, o.Metadata.Tenant)
		}
		for _, image := range imagesOf(o) {
			if err := mayUseImage(who, image); err != nil {
				return err
			}
		}
	}
	return nil
}

// mayUseImage: a user's images come from registries, from his tenant or the operator.
func mayUseImage(who auth.Identity, image string) error {
	repo, ours := strings.CutPrefix(image, onpath.ImageHost+"/")
	tenant, _, _ := strings.Cut(repo, "/")
	switch {
	case image == onpath.HostImage:
		return forbidden(who, "use image: host, which shows the nodes' files")
	case onpath.LocalImage(image):
		e := forbidden(who, "use an image by its path, which would be a file of the nodes")
		if oe, ok := e.(*onpath.Error); ok {
			oe.Remedy = "`onpath apply` pushes the file beside the YAML to the server; or name an image in a registry"
		}
		return e
	case ours && tenant != who.Tenant && tenant != onpath.OperatorTenant:
		return forbidden(who, "use the images of tenant "+tenant)
	}
	return nil
}

// mayRunCode reports whether a tenant's users may bring object files, which run
// in the kernel.
func (s *Server) mayRunCode(ctx context.Context, who auth.Identity, tenant string) error {
	o, err := s.o.Store.Get(ctx, onpath.Key{Kind: onpath.KindTenant, Name: tenant})
	if t, ok := o.(*onpath.Tenant); ok && err == nil && t.Spec.AllowEBPF {
		return nil
	}
	if err != nil && onpath.CodeOf(err) != onpath.CodeNotFound {
		return err
	}
	e := forbidden(who, "run ebpf functions from object files of its own")
	if oe, ok := e.(*onpath.Error); ok {
		oe.Remedy = "use a function that comes with onpath, or have the operator write allowEBPF: true in the Tenant"
	}
	return e
}

// scope is the tenant to which a list or watch is limited, given the one asked
// for ("": all).
func scope(ctx context.Context, kind onpath.Kind, asked string) (string, error) {
	who := whoIs(ctx)
	switch {
	case who.Role == auth.RoleOperator:
		return asked, nil
	case who.Role != auth.RoleUser || (!kind.Tenanted() && kind != onpath.KindTenant):
		return "", forbidden(who, "list "+kind.Plural())
	case asked != "" && asked != who.Tenant:
		return "", forbidden(who, "see what belongs to tenant "+asked)
	}
	return who.Tenant, nil
}
