package main

import (
	"cmp"
	"strconv"

	cadvisor "github.com/google/cadvisor/lib/model"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
)

const gib = 1 << 30

// node is a machine with the configuration of its kubelet and its devices by resource.
type node struct {
	NUMA    []numaNode          `json:"numa"`
	Kubelet configuration       `json:"kubelet"`
	Devices map[string][]device `json:"devices"`
}

// numaNode is a NUMA node; distances are by the id of the other node.
type numaNode struct {
	ID        int               `json:"id"`
	Distances map[string]uint64 `json:"distances"`
	Cores     []core            `json:"cores"`
	Memory    uint64            `json:"memory"`    // bytes, 0: 64 GiB
	HugePages map[string]uint64 `json:"hugePages"` // number of pages by size in KiB
}

// core is a core with the ids of its online threads, and the id of its last-level cache.
type core struct {
	Threads []int `json:"threads"`
	Socket  int   `json:"socket"`
	Cache   int   `json:"cache"`
}

// configuration contains the kubelet's options. CPUs are reserved by id or by amount, in millicores.
type configuration struct {
	TopologyPolicy  string            `json:"topologyPolicy"`
	TopologyScope   string            `json:"topologyScope"`
	TopologyOptions map[string]string `json:"topologyOptions"`
	CPUPolicy       string            `json:"cpuPolicy"`
	CPUOptions      map[string]string `json:"cpuOptions"`
	ReservedCPUs    string            `json:"reservedCPUs"`
	ReservedMillis  int64             `json:"reservedMillis"`
	MemoryPolicy    string            `json:"memoryPolicy"`
	ReservedMemory  []reservedMemory  `json:"reservedMemory"`
}

// reservedMemory contains the reserved bytes of one NUMA node by kind of memory.
type reservedMemory struct {
	NUMA   int              `json:"numa"`
	Limits map[string]int64 `json:"limits"`
}

// memoryReservations returns the reservations of all NUMA nodes, and their sums.
func (node *node) memoryReservations() ([]kubeletconfig.MemoryReservation, v1.ResourceList) {
	var found []kubeletconfig.MemoryReservation
	sums := v1.ResourceList{}
	for _, one := range node.Kubelet.ReservedMemory {
		limits := v1.ResourceList{}
		for kind, bytes := range one.Limits {
			amount := *resource.NewQuantity(bytes, resource.BinarySI)
			limits[v1.ResourceName(kind)] = amount
			sum := sums[v1.ResourceName(kind)]
			sum.Add(amount)
			sums[v1.ResourceName(kind)] = sum
		}
		found = append(found, kubeletconfig.MemoryReservation{NumaNode: int32(one.NUMA), Limits: limits})
	}
	return found, sums
}

func (node *node) reservation() resource.Quantity {
	return *resource.NewMilliQuantity(node.Kubelet.ReservedMillis, resource.DecimalSI)
}

// machine returns the facts that cAdvisor would report about the machine.
func (node *node) machine() *cadvisor.MachineInfo {
	found := &cadvisor.MachineInfo{}
	sockets := map[int]bool{}
	for _, one := range node.NUMA {
		numa := cadvisor.Node{Id: one.ID, Memory: cmp.Or(one.Memory, 64*gib)}
		for size, pages := range one.HugePages {
			kib, _ := strconv.ParseUint(size, 10, 64)
			numa.HugePages = append(numa.HugePages, cadvisor.HugePagesInfo{PageSize: kib, NumPages: pages})
		}
		for _, other := range node.NUMA {
			numa.Distances = append(numa.Distances, one.Distances[strconv.Itoa(other.ID)])
		}
		for number, core := range one.Cores {
			cache := cadvisor.Cache{Id: core.Cache, Level: 3, Type: "Unified"}
			numa.Cores = append(numa.Cores, cadvisor.Core{
				Id: number, Threads: core.Threads, SocketID: core.Socket, UncoreCaches: []cadvisor.Cache{cache},
			})
			sockets[core.Socket] = true
			found.NumCores += len(core.Threads)
		}
		found.NumPhysicalCores += len(one.Cores)
		found.Topology = append(found.Topology, numa)
	}
	found.NumSockets = len(sockets)
	return found
}

// object returns the Node object of the machine; memory and pods are no limits.
func (node *node) object(machine *cadvisor.MachineInfo) *v1.Node {
	cpu := *resource.NewMilliQuantity(int64(1000*machine.NumCores)-node.Kubelet.ReservedMillis, resource.DecimalSI)
	allocatable := v1.ResourceList{
		v1.ResourceCPU: cpu, v1.ResourceMemory: *resource.NewQuantity(1024*gib, resource.BinarySI),
		v1.ResourcePods: *resource.NewQuantity(1000, resource.DecimalSI),
	}
	for _, kind := range []v1.ResourceName{"hugepages-2Mi", "hugepages-1Gi"} {
		allocatable[kind] = *resource.NewQuantity(1024*gib, resource.BinarySI)
	}
	for name, devices := range node.Devices {
		allocatable[v1.ResourceName(name)] = *resource.NewQuantity(int64(len(devices)), resource.DecimalSI)
	}
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node"},
		Status:     v1.NodeStatus{Capacity: allocatable, Allocatable: allocatable},
	}
}
