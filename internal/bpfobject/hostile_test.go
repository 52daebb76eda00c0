package bpfobject

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/internal/bpffs"
)

// accept takes an object through all that stands before the data path.
func accept(t *testing.T, code []byte) error {
	o, err := Parse(code)
	if err != nil {
		return err
	}
	if err := o.CheckMemory(64<<20, 2); err != nil {
		return err
	}
	if os.Getuid() != 0 {
		t.Skip("needs root to ask the kernel's verifier")
	}
	dir := filepath.Join("/sys/fs/bpf", "onpath-hostile-test")
	if err := bpffs.Need(dir); err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	tables, err := o.OpenTables(dir)
	if err != nil {
		return err
	}
	defer CloseTables(tables)
	_, err = o.Verify(tables)
	return err
}

const head = "#include \"onpath.h\"\nONPATH_LICENSE(\"GPL\");\n"

// hostile are functions written to do harm, and the word by which the reason of their
// refusal is known; what testdata has of them was compiled from here.
var hostile = []struct{ name, source, want string }{
	{"good", head + "ONPATH_TABLE(hits, HASH, __u32, __u64, 64);\nONPATH_FUNCTION(p) { __u64 one = 1; __u32 k = p->ttl; bpf_map_update_elem(&hits, &k, &one, 0); return ONPATH_NEXT; }", ""},
	{"redirect", head + "ONPATH_FUNCTION(p) { return bpf_redirect(1, 0); }", "Redirect"},
	{"tail call", head + "struct { __uint(type, BPF_MAP_TYPE_PROG_ARRAY); __uint(max_entries, 1); __type(key, __u32); __type(value, __u32); } progs SEC(\".maps\");\nONPATH_FUNCTION(p) { bpf_tail_call(p, &progs, 0); return 0; }", "kind ProgramArray"},
	{"loop helper", head + "static long step(__u32 i, void *x) { return 0; }\nONPATH_FUNCTION(p) { return bpf_loop(1 << 20, step, p, 0); }", "a function to call"},
	{"spin lock", head + "struct v { struct bpf_spin_lock lock; __u32 n; };\nONPATH_TABLE(locked, ARRAY, __u32, struct v, 1);\nONPATH_FUNCTION(p) { __u32 k = 0; struct v *v = bpf_map_lookup_elem(&locked, &k); if (v) { bpf_spin_lock(&v->lock); v->n++; bpf_spin_unlock(&v->lock); } return 0; }", "bpf_spin_lock"},
	{"timer", head + "struct v { struct bpf_timer timer; };\nONPATH_TABLE(timed, ARRAY, __u32, struct v, 1);\nONPATH_FUNCTION(p) { __u32 k = 0; struct v *v = bpf_map_lookup_elem(&timed, &k); if (v) bpf_timer_start(&v->timer, 1, 0); return 0; }", "bpf_timer"},
	{"print", head + "ONPATH_FUNCTION(p) { bpf_printk(\"%d\", p->ttl); return 0; }", "TracePrintk"},
	{"huge table", head + "ONPATH_TABLE(huge, HASH, __u64, __u64, 4000000);\nONPATH_FUNCTION(p) { __u64 k = 0; return bpf_map_lookup_elem(&huge, &k) != 0; }", "resources.memory"},
	{"too many entries", head + "ONPATH_TABLE(huge, HASH, __u64, __u64, 100000000);\nONPATH_FUNCTION(p) { __u64 k = 0; return bpf_map_lookup_elem(&huge, &k) != 0; }", "entries"},
	{"kind of table", head + "struct { __uint(type, BPF_MAP_TYPE_DEVMAP); __uint(max_entries, 1); __type(key, __u32); __type(value, __u32); } devices SEC(\".maps\");\nONPATH_FUNCTION(p) { __u32 k = 0; return bpf_map_lookup_elem(&devices, &k) != 0; }", "kind DevMap"},
	{"nested loops", head + "ONPATH_TABLE(t, ARRAY, __u32, __u32, 4);\nONPATH_FUNCTION(p) { __u32 n = 0, i, j; for (i = 0; i < 300; i++) for (j = 0; j < 300; j++) { __u32 k = (i ^ j) & 3, *v = bpf_map_lookup_elem(&t, &k); if (v) n += *v; } return n & 1; }", "verifier"},
	{"endless loop", head + "ONPATH_FUNCTION(p) { volatile __u32 n = p->ttl; while (n) n = n * 3 + 1; return 0; }", "verifier"},
	{"wild pointer", head + "ONPATH_FUNCTION(p) { return *(volatile int *)((char *)p + 100000); }", "verifier"},
	{"another program", head + "SEC(\"tc\") int onpath_main(struct __sk_buff *skb) { return 0; }", "section \"tc\""},
	{"wrong argument", head + "SEC(\"onpath\") int onpath_main(struct __sk_buff *skb) { return skb->len; }", "onpath_packet"},
	{"no function", head + "int nothing;", "no function"},
	{"global variable", head + "int count;\nONPATH_FUNCTION(p) { return count++ & 1; }", "global variables"},
	{"no licence", "#include \"onpath.h\"\nONPATH_FUNCTION(p) { return 0; }", "licence"},
	{"kernel variable", head + "extern int LINUX_KERNEL_VERSION __attribute__((section(\".kconfig\")));\nONPATH_FUNCTION(p) { return LINUX_KERNEL_VERSION & 1; }", "does not declare"},
	{"kernel function", head + "extern void bpf_rcu_read_lock(void) __attribute__((section(\".ksyms\")));\nONPATH_FUNCTION(p) { bpf_rcu_read_lock(); return 0; }", "bpf_rcu_read_lock"},
}

// TestHostile: what is written to do harm is refused, and the reason says why.
func TestHostile(t *testing.T) {
	for _, c := range hostile {
		t.Run(c.name, func(t *testing.T) {
			code, err := os.ReadFile(objectOf(c.name))
			if err != nil {
				t.Fatal(err)
			}
			err = accept(t, code)
			switch {
			case c.want == "" && err != nil:
				t.Fatal(err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Fatalf("gives %v, must speak of %q", err, c.want)
			case c.want != "" && onpath.CodeOf(err) != onpath.CodeInvalid:
				t.Errorf("has code %v", onpath.CodeOf(err))
			}
		})
	}
}
