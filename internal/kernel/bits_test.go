package kernel

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// uniformRow is n values in [-2, 2), made without a function of package math.
func uniformRow(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(int32(r.Uint32())) * 0x1p-30
	}
	return x
}

// Every function gives the bits recorded here, on amd64 (GOAMD64 v1 to v4) and
// arm64, fused instructions or not.
func TestBitsOfEveryMachine(t *testing.T) {
	const seed, m, n, k = 61, 9, 30, 320
	r := rand.New(rand.NewPCG(seed, seed))
	digest := func(x []float32) uint64 { return Digest(0, 0, 0, 0, x) }
	got := map[string]uint64{}

	x, w, wide := uniformRow(r, m*k), uniformRow(r, k), make([]float32, m*k)
	RMSNorm(wide, x, w, m, k, 1e-6)
	got["RMSNorm"] = digest(wide)
	SiluMul(wide, x, x)
	got["SiluMul"] = digest(wide)
	copy(wide, x)
	Rope(wide, w, w[k/2:], m, k, k)
	got["Rope"] = digest(wide)
	for i, v := range x {
		wide[i] = Exp32(40*v) + Log32(float32(math.Abs(float64(v))))
	}
	got["Exp32, Log32"] = digest(wide)
	got["LogSumExp"] = digest([]float32{LogSumExp(x)})
	for _, typ := range []Type{F32, BF16, F16} {
		raw, y := make([]byte, n*k*typ.Size()), make([]float32, m*n)
		Narrow(raw, uniformRow(r, n*k), typ)
		Pack(raw, typ, n, k).Partial(y, x, m, 8, 1, 7)
		got["Partial "+typ.String()] = digest(y)
	}
	keys, values := make([][]float32, 5), make([][]float32, 5)
	for b := range keys {
		keys[b], values[b] = uniformRow(r, KeyBlock*32), uniformRow(r, KeyBlock*32)
	}
	out := make([]float32, 32)
	Attend(out, x[:32], keys, values, 300, 32, 0.7, make([]float32, KeyBlock))
	got["Attend"] = digest(out)
	for i := range wide {
		wide[i] = FMA32(x[i], x[i], float32(-x[(i+1)%len(x)]*0x1p-40))
	}
	got["FMA32"] = digest(wide)
	require.Equal(t, map[string]uint64{
		"Attend":       1287039424801082124,
		"Exp32, Log32": 17389938984319105722,
		"FMA32":        6843478067351655775,
		"LogSumExp":    6377326201895324165,
		"Partial BF16": 7806256860699453658,
		"Partial F16":  17041020218312008509,
		"Partial F32":  2132512669663809569,
		"RMSNorm":      3167375505061773672,
		"Rope":         12016059894874799138,
		"SiluMul":      16431851542644511647,
	}, got)
}
