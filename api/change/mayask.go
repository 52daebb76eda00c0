package change

import (
	"context"
	"strings"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/api/rights"
)

// mayAsk looks at what an object asks for: the operator's tier, files of the
// nodes, and other tenants' images are not for users.
func (s *examiner) mayAsk(ctx context.Context, o onpath.Object) error {
	who := rights.WhoIs(ctx)
	if who.Role == auth.RoleOperator {
		return nil
	}
	switch o := o.(type) {
	case *onpath.Chain:
		if o.Spec.Tier == onpath.TierOperator {
			return rights.Forbidden(who, "have a chain of tier operator")
		}
	case *onpath.Function:
		if o.Spec.Traits().KernelCode {
			return s.mayRunCode(ctx, who, o.Metadata.Tenant)
		}
		for _, image := range imagesOf(o) {
			if err := s.mayUseImage(ctx, who, o.Metadata.Tenant, image); err != nil {
				return err
			}
		}
	}
	return nil
}

// mayUseImage: a user's images come from registries, from his tenant or the operator.
func (s *examiner) mayUseImage(ctx context.Context, who auth.Identity, owner, image string) error {
	repo, ours := strings.CutPrefix(image, onpath.ImageHost+"/")
	tenant, _, _ := strings.Cut(repo, "/")
	switch {
	case image == onpath.HostImage:
		return rights.Forbidden(who, "use image: host, which shows the nodes' files")
	case onpath.LocalImage(image):
		e := rights.Forbidden(who, "use an image by its path, which would be a file of the nodes")
		if oe, ok := e.(*onpath.Error); ok {
			oe.Remedy = "`onpath apply` pushes the file beside the YAML to the server; or name an image in a registry"
		}
		return e
	case ours && tenant != who.Tenant && tenant != onpath.OperatorTenant:
		return rights.Forbidden(who, "use the images of tenant "+tenant)
	case ours:
		return nil
	}
	o, err := s.d.Store.Get(ctx, onpath.Key{Kind: onpath.KindTenant, Name: owner})
	if err != nil && onpath.CodeOf(err) != onpath.CodeNotFound {
		return err
	}
	t, _ := o.(*onpath.Tenant)
	if why := onpath.BadRegistry(image, t); why != "" {
		e := rights.Forbidden(who, "use image "+image+": "+why)
		if oe, ok := e.(*onpath.Error); ok {
			oe.Remedy = "push it to the server (onpath apply of a file), or ask an operator for the registry " +
				"(spec.registries of the Tenant)"
		}
		return e
	}
	return nil
}

// mayRunCode reports whether a tenant's users may bring object files, which run
// in the kernel.
func (s *examiner) mayRunCode(ctx context.Context, who auth.Identity, tenant string) error {
	o, err := s.d.Store.Get(ctx, onpath.Key{Kind: onpath.KindTenant, Name: tenant})
	if t, ok := o.(*onpath.Tenant); ok && err == nil && t.Spec.AllowEBPF {
		return nil
	}
	if err != nil && onpath.CodeOf(err) != onpath.CodeNotFound {
		return err
	}
	e := rights.Forbidden(who, "run ebpf functions from object files of its own")
	if oe, ok := e.(*onpath.Error); ok {
		oe.Remedy = "use a function that comes with onpath, or have the operator write allowEBPF: true in the Tenant"
	}
	return e
}
