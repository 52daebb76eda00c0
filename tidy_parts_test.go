package onpath_test

import (
	"fmt"
	"go/ast"
	"go/types"
	"slices"
	"testing"
)

// wholes are the types that are put together from parts, by folder. No part reaches back into
// its whole: by no field, no parameter and no receiver that is one.
var wholes = map[string]string{"control": "Controller", "control/pool": "Pool", "node": "Agent", "node/instance": "Set"}

// TestPartsDoNotReachTheWhole: a part that holds the whole has its lock and all its fields, whatever
// its own are.
func TestPartsDoNotReachTheWhole(t *testing.T) {
	files, fset := productFiles(t)
	for _, f := range files {
		whole := wholes[f.dir]
		if whole == "" {
			continue
		}
		for _, d := range f.ast.Decls {
			fn, isFunc := d.(*ast.FuncDecl)
			if isFunc && fn.Recv != nil && typeIsNamed(fn.Recv.List[0].Type, whole) || isFunc && fn.Name.Name == "New" {
				continue
			}
			ast.Inspect(d, func(n ast.Node) bool {
				field, ok := n.(*ast.Field)
				if ok && typeIsNamed(field.Type, whole) {
					t.Errorf("%s: it reaches all of %s; give it the part that it needs", fset.Position(field.Pos()), whole)
				}
				return true
			})
		}
	}
}

func typeIsNamed(e ast.Expr, name string) bool {
	if star, ok := e.(*ast.StarExpr); ok {
		e = star.X
	}
	id, ok := e.(*ast.Ident)
	return ok && id.Name == name
}

// lockers are the functions that may unlock a mutex otherwise than by defer, by folder: they lock
// it themselves, and do so again.
var lockers = map[string][]string{"control/pool": {"lockSettled", "lockIdle"}}

// TestMutexIsHeldToTheEnd: a function that lets go of a mutex which its caller holds changes what
// the caller knows.
func TestMutexIsHeldToTheEnd(t *testing.T) {
	files, fset := productFiles(t)
	for _, f := range files {
		allowed, ok := lockers[f.dir]
		if !ok {
			continue
		}
		for _, d := range f.ast.Decls {
			fn, isFunc := d.(*ast.FuncDecl)
			if !isFunc || slices.Contains(allowed, fn.Name.Name) {
				continue
			}
			deferred := map[ast.Node]bool{}
			ast.Inspect(fn, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.DeferStmt:
					deferred[n.Call] = true
				case *ast.CallExpr:
					if s, ok := n.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "Unlock" && !deferred[n] {
						t.Errorf("%s: %s unlocks before its end; have what it holds the lock for be a function", fset.Position(n.Pos()), fn.Name.Name)
					}
				}
				return true
			})
		}
	}
}

// mostBorrowed is how often a function may unlock a mutex that its caller has locked.
const mostBorrowed = 5

// TestWhoUnlocksHasLocked: a function that unlocks a mutex has locked that mutex itself, above.
func TestWhoUnlocksHasLocked(t *testing.T) {
	files, fset := productFiles(t)
	var borrowed []string
	for _, f := range files {
		for _, d := range f.ast.Decls {
			fn, isFunc := d.(*ast.FuncDecl)
			if !isFunc || slices.Contains(lockers[f.dir], fn.Name.Name) {
				continue
			}
			locked := map[string]bool{}
			ast.Inspect(fn, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				s, ok := call.Fun.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				switch mutex := types.ExprString(s.X); s.Sel.Name {
				case "Lock", "RLock", "TryLock":
					locked[mutex] = true
				case "Unlock", "RUnlock":
					if !locked[mutex] {
						borrowed = append(borrowed, fmt.Sprintf("%s: %s unlocks %s", fset.Position(n.Pos()), fn.Name.Name, mutex))
					}
				}
				return true
			})
		}
	}
	ratchet(t, "unlocks of a mutex that the caller has locked", mostBorrowed, 0, borrowed)
}
