package kernel

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// randomRow is n values of a normal distribution, rounded to t.
func randomRow(r *rand.Rand, n int, t Type) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	Round(x, t)
	return x
}

// randomWeights is a packed matrix (n, k) of such values, and the stored one.
func randomWeights(r *rand.Rand, t Type, n, k int) (*Weights, []byte) {
	raw := make([]byte, n*k*t.Size())
	Narrow(raw, randomRow(r, n*k, F32), t)
	return Pack(raw, t, n, k), raw
}

func BenchmarkPartial(b *testing.B) {
	for _, t := range []Type{F32, BF16, F16} {
		for _, m := range []int{1, 128} {
			for _, size := range []int{256, 1024, 2048} {
				if m > 1 && t != BF16 && size > 256 {
					continue
				}
				b.Run(fmt.Sprintf("%v/m=%d/n=k=%d", t, m, size), func(b *testing.B) {
					r := rand.New(rand.NewPCG(1, 2))
					w, _ := randomWeights(r, t, size, size)
					x, y := randomRow(r, m*size, F32), make([]float32, m*size)
					for b.Loop() {
						w.Partial(y, x, m, 1, 0, 1)
					}
					reportFlops(b, 2*m*size*size)
				})
			}
		}
	}
}

// BenchmarkPartialRounded has x in bf16 as well, where ties are frequent.
func BenchmarkPartialRounded(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	w, _ := randomWeights(r, BF16, 512, 512)
	x, y := randomRow(r, 128*512, BF16), make([]float32, 128*512)
	for b.Loop() {
		w.Partial(y, x, 128, 1, 0, 1)
	}
	reportFlops(b, 2*128*512*512)
}

// BenchmarkPartialTiny has x so small that the sums may be subnormal.
func BenchmarkPartialTiny(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	w, _ := randomWeights(r, BF16, 512, 512)
	x, y := randomRow(r, 128*512, F32), make([]float32, 128*512)
	for i := range x {
		x[i] *= 0x1p-120
	}
	for b.Loop() {
		w.Partial(y, x, 128, 1, 0, 1)
	}
	reportFlops(b, 2*128*512*512)
}

// BenchmarkPartialZero has rows of zeros, as padding is.
func BenchmarkPartialZero(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	w, _ := randomWeights(r, BF16, 512, 512)
	x, y := make([]float32, 128*512), make([]float32, 128*512)
	for b.Loop() {
		w.Partial(y, x, 128, 1, 0, 1)
	}
	reportFlops(b, 2*128*512*512)
}

func BenchmarkAttend(b *testing.B) {
	for _, dim := range []int{32, 64, 128} {
		b.Run(fmt.Sprintf("n=1000/dim=%d", dim), func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 2))
			const n = 1000
			keys, values := randomBlocks(r, n, dim), randomBlocks(r, n, dim)
			q, out := randomRow(r, dim, F32), make([]float32, dim)
			scores := make([]float32, KeyBlock)
			for b.Loop() {
				Attend(out, q, keys, values, n, dim, 0.1, scores)
			}
			reportFlops(b, 4*n*dim)
		})
		b.Run(fmt.Sprintf("rows=32/n=1000/dim=%d", dim), func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 2))
			const n, rows = 1000, 32
			keys, values := randomBlocks(r, n, dim), randomBlocks(r, n, dim)
			var q, out [][]float32
			var seen []int
			for range rows {
				q, out = append(q, randomRow(r, dim, F32)), append(out, make([]float32, dim))
				seen = append(seen, n)
			}
			scores := make([]float32, rows*KeyBlock)
			for b.Loop() {
				AttendRows(out, q, seen, keys, values, dim, 0.1, scores)
			}
			reportFlops(b, rows*4*n*dim)
		})
	}
}

// randomBlocks is n positions (dim) in blocks of KeyBlock.
func randomBlocks(r *rand.Rand, n, dim int) [][]float32 {
	var blocks [][]float32
	for from := 0; from < n; from += KeyBlock {
		blocks = append(blocks, randomRow(r, KeyBlock*dim, F32))
	}
	return blocks
}

func BenchmarkSumTree(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	var parts [][]float32
	for range 8 {
		parts = append(parts, randomRow(r, 1<<14, F32))
	}
	dst := make([]float32, 1<<14)
	for b.Loop() {
		SumTree(dst, parts)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/(8<<14), "ns/element")
}

func BenchmarkDigest(b *testing.B) {
	x := randomRow(rand.New(rand.NewPCG(1, 2)), 4096, F32)
	var sum uint64
	for b.Loop() {
		sum += Digest(1, 2, 3, 4, x)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/4096, "ns/element")
}

func BenchmarkExp32(b *testing.B) {
	x := randomRow(rand.New(rand.NewPCG(1, 2)), 4096, F32)
	var sum float32
	for b.Loop() {
		for _, v := range x {
			sum += Exp32(v)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/4096, "ns/element")
}

func reportFlops(b *testing.B, flops int) {
	b.ReportMetric(float64(flops)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
}
