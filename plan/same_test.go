package plan

import (
	"fmt"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// TestSame changes every field of a plan, one at a time.
func TestSame(t *testing.T) {
	a, b := filled(), filled()
	if !same(a, b) {
		t.Fatal("two plans made alike are not the same")
	}
	changes := 0
	each(reflect.ValueOf(b).Elem(), "", func(v reflect.Value, name string) {
		changes++
		was := reflect.New(v.Type()).Elem()
		was.Set(v)
		v.Set(other(v))
		if got, want := same(a, b), name == ".Generation" || name == ".Datapath.Generation" ||
			name == ".Datapath.Paths[0].AdoptFor"; got != want {
			t.Errorf("with another%s they are the same: %v", name, got)
		}
		v.Set(was)
	})
	if !same(a, b) || changes < 100 {
		t.Errorf("%d fields were changed and changed back; are the two the same: %v", changes, same(a, b))
	}
	b.Datapath.Vports = b.Datapath.Vports[:0]
	if same(a, b) {
		t.Error("without its vports it is the same")
	}
}

// TestSameStatus changes every field of statuses, one at a time.
func TestSameStatus(t *testing.T) {
	unlike(t, sameChain)
	unlike(t, sameDeployment)
}

func unlike[T any](t *testing.T, same func(a, b *T) bool) {
	a, b := new(T), new(T)
	fill(reflect.ValueOf(a).Elem())
	fill(reflect.ValueOf(b).Elem())
	if !same(a, b) {
		t.Fatalf("two of %T made alike are not the same", a)
	}
	each(reflect.ValueOf(b).Elem(), "", func(v reflect.Value, name string) {
		was := reflect.New(v.Type()).Elem()
		was.Set(v)
		v.Set(other(v))
		if same(a, b) {
			t.Errorf("%T with another %s is the same", a, name)
		}
		v.Set(was)
	})
}

// filled is a plan whose every field has a value that is not zero.
func filled() *onpath.NodePlan {
	p := new(onpath.NodePlan)
	fill(reflect.ValueOf(p).Elem())
	return p
}

func fill(v reflect.Value) {
	switch {
	case leaf(v):
		v.Set(other(v))
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case v.Kind() == reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case v.Kind() == reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i))
		}
	case v.Kind() == reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key)
		fill(value)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	default:
		panic(fmt.Sprintf("cannot fill a %s", v.Type()))
	}
}

// each calls f for everything in v that has no parts; of maps, for the whole.
func each(v reflect.Value, name string, f func(v reflect.Value, name string)) {
	switch {
	case leaf(v) || v.Kind() == reflect.Map:
		f(v, name)
	case v.Kind() == reflect.Pointer:
		each(v.Elem(), name, f)
	case v.Kind() == reflect.Slice || v.Kind() == reflect.Array:
		each(v.Index(0), name+"[0]", f)
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			each(v.Field(i), name+"."+v.Type().Field(i).Name, f)
		}
	}
}

func leaf(v reflect.Value) bool {
	switch v.Interface().(type) {
	case netip.Addr, netip.AddrPort, netip.Prefix, time.Time:
		return true
	}
	return v.CanInt() || v.CanUint() || v.Kind() == reflect.String || v.Kind() == reflect.Bool || v.CanFloat()
}

// other is another value than v's, and not zero unless v is true.
func other(v reflect.Value) reflect.Value {
	out := reflect.New(v.Type()).Elem()
	switch x := v.Interface().(type) {
	case netip.Addr:
		return reflect.ValueOf(netip.AddrFrom4([4]byte{10, 0, 0, byte(len(x.String()))}))
	case netip.AddrPort:
		return reflect.ValueOf(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, 1}), x.Port()+1))
	case netip.Prefix:
		return reflect.ValueOf(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(len(x.String()))}), 32))
	case time.Time:
		return reflect.ValueOf(x.Add(time.Hour))
	}
	switch {
	case v.CanInt():
		out.SetInt(v.Int() + 1)
	case v.CanUint():
		out.SetUint(v.Uint() + 1)
	case v.CanFloat():
		out.SetFloat(v.Float() + 1)
	case v.Kind() == reflect.Bool:
		out.SetBool(!v.Bool())
	case v.Kind() == reflect.Map:
		// none
	default:
		out.SetString(v.String() + "x")
	}
	return out
}
