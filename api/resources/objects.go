package resources

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/rights"
	"github.com/onpath/onpath/api/router"
	"github.com/onpath/onpath/api/wire"
)

type listInput struct {
	Tenant string `query:"tenant" doc:"only this tenant's; default all that you may see"`
}

type listOutput[T any] struct{ Body wire.List[T] }

type objectOutput[T any] struct {
	ETag string `header:"ETag" doc:"the object's version"`
	Body T
}

type putInput struct {
	router.Item
	IfMatch string `header:"If-Match" doc:"the version that was read; default metadata.version, and without either whatever is there"`
	RawBody []byte `contentType:"application/json"`
}

type deleteInput struct {
	router.Item
	IfMatch string `header:"If-Match" doc:"the version that was read; default whatever is there"`
	Force   bool   `query:"force" doc:"a node that is away goes, whatever it had"`
}

type changeOutput struct{ Body wire.ObjectChange }

// registerObjects adds the operations of one kind.
func registerObjects[T onpath.Object](s *Resources, kind onpath.Kind) {
	base := "/v1/" + kind.Plural()
	router.Register(s.router, router.Operation(http.MethodGet, base, "list-"+kind.Plural(), "List "+kind.Plural()),
		func(ctx context.Context, in *listInput) (*listOutput[T], error) {
			list, revision, err := s.list(ctx, kind, in.Tenant)
			if err != nil {
				return nil, err
			}
			out := &listOutput[T]{Body: wire.List[T]{Items: make([]T, 0, len(list)), Revision: revision}}
			for _, o := range list {
				out.Body.Items = append(out.Body.Items, o.(T))
			}
			return out, nil
		})
	registerItem[T](s, kind)
}

func registerItem[T onpath.Object](s *Resources, kind onpath.Kind) {
	path := "/v1/" + kind.Plural() + "/{name}"
	if kind.Tenanted() {
		path = "/v1/" + kind.Plural() + "/{tenant}/{name}"
	}
	one := strings.ToLower(string(kind))
	s.router.Allow("list-"+kind.Plural(), rights.List, kind)
	s.router.Allow("get-"+one, rights.Read, kind)
	s.router.Allow("put-"+one, rights.Write, kind)
	s.router.Allow("delete-"+one, rights.Delete, kind)
	router.Register(s.router, router.ItemOperation(http.MethodGet, path, "get-"+one, "Read one of the "+kind.Plural()),
		func(ctx context.Context, in *router.Item) (*objectOutput[T], error) {
			k := in.Key(kind)
			o, err := s.d.Store.Get(ctx, k)
			if err != nil {
				o, err = ended(ctx, s.d.Past, k, err)
			}
			if err != nil {
				return nil, s.madeByChain(ctx, k, err)
			}
			return &objectOutput[T]{ETag: etag(o.Meta().Version), Body: o.(T)}, nil
		})
	if kind.ReadOnly() {
		return
	}
	s.registerHistory(kind, path)
	put := router.ItemOperation(http.MethodPut, path, "put-"+one, "Create or replace one of the "+kind.Plural())
	put.MaxBodyBytes, put.Errors = wire.MaxObjectBody, append(put.Errors, http.StatusPreconditionFailed)
	put.SkipValidateBody = true // read strictly, and checked by Validate
	put.RequestBody = &huma.RequestBody{Required: true}
	router.Register(s.router, put, func(ctx context.Context, in *putInput) (*objectOutput[T], error) {
		o, err := s.put(ctx, in.Key(kind), in.IfMatch, in.RawBody)
		if err != nil {
			return nil, err
		}
		return &objectOutput[T]{ETag: etag(o.Meta().Version), Body: o.(T)}, nil
	})
	// Register describes a body that is read raw as bytes.
	put.RequestBody.Content["application/json"].Schema = s.router.SchemaOf(reflect.TypeFor[T]())
	remove := router.ItemOperation(http.MethodDelete, path, "delete-"+one, "Delete one of the "+kind.Plural())
	remove.Errors = append(remove.Errors, http.StatusPreconditionFailed)
	router.Register(s.router, remove,
		func(ctx context.Context, in *deleteInput) (*changeOutput, error) {
			change, err := s.remove(ctx, in.Key(kind), in.IfMatch, in.Force)
			if err != nil {
				return nil, err
			}
			return &changeOutput{Body: change}, nil
		})
}

func (s *Resources) list(ctx context.Context, kind onpath.Kind, tenant string) ([]onpath.Object, int64, error) {
	tenant = rights.ScopeTenant(ctx, tenant)
	if kind.Tenanted() {
		return s.d.Store.List(ctx, kind, tenant)
	}
	list, revision, err := s.d.Store.List(ctx, kind, "")
	if kind == onpath.KindTenant && tenant != "" {
		kept := list[:0]
		for _, o := range list {
			if o.Meta().Name == tenant {
				kept = append(kept, o)
			}
		}
		list = kept
	}
	return list, revision, err
}

func (s *Resources) put(ctx context.Context, k onpath.Key, ifMatch string, body []byte) (onpath.Object, error) {
	o, err := router.DecodeObject(body)
	if err != nil {
		return nil, err
	}
	m := o.Meta()
	if m.Name == "" {
		m.Name = k.Name
	}
	if m.Tenant == "" {
		m.Tenant = k.Tenant
	}
	if onpath.KeyOf(o) != k {
		return nil, onpath.Errorf(onpath.CodeInvalid, "the path names %s, the body %s", k, onpath.KeyOf(o))
	}
	version, err := version(ifMatch, m.Version)
	if err != nil {
		return nil, err
	}
	if ifMatch == "*" { // whatever is there, and something is
		if _, err = s.d.Store.Get(ctx, k); onpath.CodeOf(err) == onpath.CodeNotFound {
			err = router.Unmatched{Err: err}
		}
	}
	if err == nil {
		err = unmatched(k, ifMatch, s.d.Changes.Put(ctx, o, version))
	}
	return o, err
}

// unmatched tells a change that was refused for the version in If-Match from others.
func unmatched(k onpath.Key, ifMatch string, err error) error {
	if e := (*onpath.Error)(nil); ifMatch != "" && errors.As(err, &e) && e.Code == onpath.CodeConflict && e.Object == k.String() {
		return router.Unmatched{Err: err}
	}
	return err
}

func (s *Resources) remove(ctx context.Context, k onpath.Key, ifMatch string, force bool) (wire.ObjectChange, error) {
	version, err := version(ifMatch, 0)
	if err != nil {
		return wire.ObjectChange{}, err
	}
	if err := s.d.Changes.Remove(ctx, k, version, force); err != nil {
		return wire.ObjectChange{}, s.madeByChain(ctx, k, unmatched(k, ifMatch, err))
	}
	return wire.ObjectChange{ObjectRef: wire.RefOf(k), Action: wire.Deleted}, nil
}

// madeByChain explains why a deployment is not there, or is no user's to delete,
// when it is one that a chain's short form makes: such have no object.
func (s *Resources) madeByChain(ctx context.Context, k onpath.Key, err error) error {
	if k.Kind != onpath.KindDeployment || onpath.CodeOf(err) != onpath.CodeNotFound {
		return err
	}
	chains, _, listErr := s.d.Store.List(ctx, onpath.KindChain, k.Tenant)
	if listErr != nil {
		return err // what is known is enough to answer
	}
	for _, o := range chains {
		c, ok := o.(*onpath.Chain)
		if !ok {
			continue
		}
		for i, e := range c.Spec.Through {
			if e.Function == "" || onpath.ShortDeployment(c.Metadata.Name, e.Function) != k.Name {
				continue
			}
			name := onpath.KeyOf(c)
			e := onpath.Errorf(onpath.CodeNotFound, "it has no object of its own: spec.through[%d] of %s makes it", i, name)
			e.Object, e.Remedy = k.String(), "onpath describe chain "+c.Metadata.Name+" shows it; change it there"
			if c.Metadata.Tenant != onpath.DefaultTenant {
				e.Remedy = "onpath describe chain " + c.Metadata.Tenant + "/" + c.Metadata.Name + " shows it; change it there"
			}
			return e
		}
	}
	return err
}

func etag(version int64) string { return `"` + strconv.FormatInt(version, 10) + `"` }

// version is the one that a write names; 0 where it names none.
func version(ifMatch string, own int64) (int64, error) {
	if ifMatch == "" || ifMatch == "*" {
		return own, nil
	}
	v, err := strconv.ParseInt(strings.Trim(ifMatch, `"`), 10, 64)
	if err != nil || v < 1 {
		return 0, onpath.Errorf(onpath.CodeInvalid, "If-Match is %s; write the version that was read", ifMatch)
	}
	return v, nil
}
