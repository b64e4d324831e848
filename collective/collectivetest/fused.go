package collectivetest

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/collective"
)

// fused checks that MatmulReduceScatter in both modes has the bits of the whole
// product followed by a ReduceScatter, asks for every row once, in the order of
// its mode, and touches no other memory.
func fused(t *testing.T, mesh func(t *testing.T, size int) []Endpoint, size int) {
	g := newGroup(t, mesh(t, size), nil)
	for _, shape := range [][2]int{{0, 4}, {1, 1}, {3, 0}, {3, 5}, {130, 3}, {300, 200}} {
		for _, mode := range []collective.CommMode{collective.AICPU, collective.AIV} {
			for _, out := range []kind{fp32, bf16, fp16} {
				if size > 8 && (out != bf16 || shape[1] == 200) {
					continue // frames grow with the square of the ranks
				}
				if shape[1] == 200 && (out != bf16 || size != 2 && size != 7) {
					continue // many chunks once is enough
				}
				g.fusedCase(shape[0], shape[1], mode, out)
			}
		}
	}
}

func (g *group) fusedCase(rows, cols int, mode collective.CommMode, out kind) {
	size := len(g.comms)
	what := fmt.Sprintf("%v %dx%d a rank to %v", mode, rows, cols, out)
	dst, product := make([]*memory, size), make([]*memory, size)
	values, asked := make([][]float32, size), make([][][2]int, size)
	for r := range size {
		dst[r] = newMemory(out, rows*cols)
		product[r] = newMemory(fp32, size*rows*cols)
		values[r] = product[r].fill(uint64(rows+cols), uint64(r))
	}
	f := collective.Fused{Rows: size * rows, Cols: cols, Mode: mode}
	errs := g.each(what, func(ctx context.Context, r int, c *collective.Comm) error {
		return c.MatmulReduceScatter(ctx, call, f, dst[r].buffer(), func(from, to int, y []float32) {
			asked[r] = append(asked[r], [2]int{from, to})
			if len(y) != (to-from)*cols {
				y = nil // the copy below shows it
			}
			copy(y, values[r][from*cols:to*cols])
		})
	})
	want := reduced(out, values, collective.SUM)
	n := rows * cols * out.Size()
	for r, err := range errs {
		who := fmt.Sprintf("%s rank=%d", what, r)
		require.NoError(g.t, err, who)
		checkBits(g.t, who, out, dst[r].data, want[r*n:(r+1)*n])
		dst[r].checkGuards(g.t, who)
		g.checkAsked(who, asked[r], r, rows, cols, mode)
	}
}

// checkAsked checks which rows a rank was asked to compute, and in what order.
func (g *group) checkAsked(who string, asked [][2]int, rank, rows, cols int,
	mode collective.CommMode) {
	size := len(g.comms)
	if rows*cols == 0 {
		require.Empty(g.t, asked, who)
		return
	}
	tile := rows
	if mode == collective.AIV {
		tile = min(rows, 128)
	}
	var want [][2]int
	for from := 0; from < rows; from += tile {
		for i := size - 1; i >= 0; i-- { // the farthest destination first, the own last
			base := (rank + i) % size * rows
			want = append(want, [2]int{base + from, base + min(rows, from+tile)})
		}
	}
	require.True(g.t, slices.Equal(want, asked), "%s: asked for %v, want %v", who, asked, want)
}
