package attack_test

import (
	"crypto/rand"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/api/auth"
	"github.com/onpath/onpath/api/client"
	"github.com/onpath/onpath/store/etcd"
)

// filling is a store that one tenant fills, while another one goes on.
type filling struct {
	*server
	store      *etcd.Store
	evil, shop *client.Client
	most       int64 // what the store may hold
	large      int   // bytes of a large function
}

func (f *filling) write(c *client.Client, tenant, name string, bytes int) error {
	o := &onpath.Function{Metadata: onpath.Metadata{Name: name, Tenant: tenant}}
	o.Spec.Container = &onpath.ContainerSpec{Image: "registry.example/fw:1", Env: onpath.Env{"SALT": rand.Text()}}
	for i := range bytes / 30_000 {
		o.Spec.Container.Env[fmt.Sprintf("F%d", i)] = strings.Repeat("x", 30_000)
	}
	_, err := c.Put(f.t.Context(), tagged(o))
	return err
}

// goesOn has the shop apply and read.
func (f *filling) goesOn(when string) {
	f.t.Helper()
	if err := f.write(f.shop, "shop", "fw", 1000); err != nil {
		f.t.Errorf("%s the shop's change is refused: %v", when, err)
	}
	if _, err := f.shop.Get(f.t.Context(), onpath.Key{Kind: onpath.KindChain, Tenant: "shop", Name: "web"}); err != nil {
		f.t.Errorf("%s the shop cannot read: %v", when, err)
	}
}

// quota sets what evil may have.
func (f *filling) quota(bytes onpath.Size) {
	f.t.Helper()
	o := &onpath.Tenant{Metadata: onpath.Metadata{Name: "evil"}, Spec: onpath.TenantSpec{Quota: &onpath.Quota{Bytes: bytes, Objects: -1, Requests: -1}}}
	if _, err := f.operator.Put(f.t.Context(), tagged(o)); err != nil {
		f.t.Fatal(err)
	}
}

// fill has evil write functions until one is refused, and gives how many there are.
func (f *filling) fill() (n int, err error) {
	f.t.Helper()
	for n = 0; int64(n) <= 2*f.most/int64(f.large); n++ {
		if err := f.write(f.evil, "evil", fmt.Sprintf("f%d", n), f.large); err != nil {
			return n, err
		}
		if n%64 == 0 {
			f.goesOn(fmt.Sprintf("with %d functions of evil", n))
		}
	}
	f.t.Fatalf("%d large functions in a store of %d bytes", n, f.most)
	return n, nil
}

// TestOneFillsTheStore: a tenant that writes one object again and again is never refused, and one
// that writes more and more is by its quota; meanwhile others go on. A tenant whose quota the
// operator took away fills the store: others read and delete then, the operator frees space, and
// all go on without a restart. ONPATH_SOAK: as many bytes as a store of the default size has.
func TestOneFillsTheStore(t *testing.T) {
	soak := os.Getenv("ONPATH_SOAK") != ""
	o := etcd.Options{Dir: t.TempDir(), Quota: 4 << 20}
	small, large := onpath.Size(1<<20), 240_000
	if soak { // the default sizes
		o.Quota, small, large = 0, 0, 900_000
	}
	store, err := etcd.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	f := &filling{server: newServerOn(t, store), store: store, most: store.Use().Quota, large: large}
	f.evil = f.join(auth.TokenRequest{Role: auth.RoleUser, Name: "mallory", Tenant: "evil"}, t.TempDir())
	f.shop = f.join(auth.TokenRequest{Role: auth.RoleUser, Name: "alice", Tenant: "shop"}, t.TempDir())
	f.quota(small)
	began := time.Now()
	versions := int(f.most)/large + 1
	for i := range versions {
		if err := f.write(f.evil, "evil", "f0", large); err != nil {
			t.Fatalf("version %d of a function: %v", i, err)
		}
		if i%16 == 0 {
			f.goesOn(fmt.Sprintf("at version %d", i))
		}
	}
	t.Logf("after %d versions of a large function, after %s: %+v", versions, time.Since(began), store.Use())
	n, err := f.fill()
	if onpath.CodeOf(err) != onpath.CodeNoCapacity || !strings.Contains(err.Error(), "have the operator raise spec.quota.bytes of tenant evil") {
		t.Errorf("beyond the quota: %v", err)
	}
	f.goesOn("at evil's quota")
	t.Logf("by %d large functions evil is at its quota, after %s: %+v", n, time.Since(began), store.Use())
	if soak { // each change reads all objects: to fill the default size by them takes days
		return
	}
	f.quota(1 << 40)
	n, err = f.fill()
	if onpath.CodeOf(err) != onpath.CodeNoCapacity || !strings.Contains(err.Error(), "deletions go on") {
		t.Errorf("beyond the store's quota: %v", err)
	}
	t.Logf("by %d large functions the store is full, after %s: %+v", n, time.Since(began), store.Use())
	if _, err := f.shop.Get(t.Context(), onpath.Key{Kind: onpath.KindChain, Tenant: "shop", Name: "web"}); err != nil {
		t.Errorf("reading while the store is full: %v", err)
	}
	if err := f.shop.Delete(t.Context(), onpath.Key{Kind: onpath.KindChain, Tenant: "shop", Name: "web"}, false); err != nil {
		t.Errorf("a deletion while the store is full: %v", err)
	}
	for i := range n / 2 {
		k := onpath.Key{Kind: onpath.KindFunction, Tenant: "evil", Name: fmt.Sprintf("f%d", i)}
		if err := f.operator.Delete(t.Context(), k, false); err != nil {
			t.Fatalf("the operator deletes: %v", err)
		}
	}
	if err := f.write(f.shop, "shop", "fw", 1000); err != nil {
		t.Errorf("a change after the operator deleted: %v", err)
	}
	if err := f.write(f.evil, "evil", "f0", large); err != nil {
		t.Errorf("a large change after the operator deleted: %v", err)
	}
	t.Logf("after the operator deleted, after %s: %+v", time.Since(began), store.Use())
}
